// SPDX-License-Identifier: Apache-2.0
#include "tessera/monitor/series.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tessera/monitor/html.h"
#include "tessera/monitor/number.h"
#include "tests/monitor/not_finite.h"

namespace tessera::monitor {
namespace {

TEST(Series, SmoothingKeepsALineAndItsGaps) {
  Points line;
  for (int i = 0; i < 200; ++i) {
    line.x.push_back(i);
    line.y.push_back(i == 50 ? kNan : 3.0);
  }
  const Points smoothed = smooth(line);
  ASSERT_EQ(smoothed.y.size(), 200U);
  for (size_t i = 0; i < 200; ++i) {
    if (i == 50) {
      EXPECT_TRUE(std::isnan(smoothed.y[i]));
    } else {
      EXPECT_DOUBLE_EQ(smoothed.y[i], 3.0);
    }
  }
  const Points few{{1, 2, 3}, {5, 0, 5}};
  EXPECT_EQ(smooth(few).y, few.y);
}

TEST(Series, ThinningKeepsSpikesEndsAndOrder) {
  Points points;
  for (int i = 0; i < 100000; ++i) {
    points.x.push_back(i);
    points.y.push_back(i == 77777 ? 1000.0 : i == 33333 ? -1000.0 : i % 7 == 0 ? kNan : std::sin(i * 0.001));
  }
  const Points thinned = thin(points, 700);
  EXPECT_LE(thinned.x.size(), 702U);
  EXPECT_GE(thinned.x.size(), 350U);
  EXPECT_TRUE(std::is_sorted(thinned.x.begin(), thinned.x.end()));
  EXPECT_EQ(thinned.x.back(), 99999);
  EXPECT_EQ(*std::max_element(thinned.y.begin(), thinned.y.end()), 1000.0);
  EXPECT_EQ(*std::min_element(thinned.y.begin(), thinned.y.end()), -1000.0);
  EXPECT_EQ(thin(points, 200000).x.size(), 100000U);
}

TEST(Series, AxesHaveRoundTicksAroundTheValues) {
  struct Case {
    double low, high;
    bool whole;
  };
  for (const auto& [low, high, whole] :
       {Case{0, 2.55, false}, Case{81, 89, false}, Case{0, 5600, false}, Case{0, 2340, true},
        Case{0, 1, true}, Case{3, 3, false}, Case{0, 0, false}, Case{1, 1, true}, Case{-4, 7, false},
        Case{1e-9, 2e-9, false}, Case{0, 1e12, false}}) {
    const Axis axis = make_axis(low, high, 5, whole);
    EXPECT_LE(axis.low, low);
    EXPECT_GE(axis.high, high);
    EXPECT_GT(axis.high, axis.low);
    EXPECT_GE(axis.ticks.size(), 2U) << low << " " << high;
    EXPECT_LE(axis.ticks.size(), 9U) << low << " " << high;
    if (whole) {
      EXPECT_EQ(axis.spacing, std::round(axis.spacing));
    }
  }
}

TEST(Series, QuantilesPassOverWhatIsNotFinite) {
  EXPECT_EQ(quantile({kNan, 3, 1, 2, std::numeric_limits<double>::infinity()}, 0.5), 2);
  EXPECT_TRUE(std::isnan(quantile({}, 0.5)));
  EXPECT_TRUE(std::isnan(quantile({kNan}, 1)));
}

TEST(Number, TextOfTicks) {
  EXPECT_EQ(tick_text(0, 0.5), "0");
  EXPECT_EQ(tick_text(0.75, 0.25), "0.75");
  EXPECT_EQ(tick_text(1500, 500), "1,500");
  EXPECT_EQ(tick_text(20000, 5000), "20k");
  EXPECT_EQ(tick_text(1500000, 500000), "1.5M");
  EXPECT_EQ(tick_text(8e-4, 2e-4), "8e-4");
  EXPECT_EQ(tick_text(-2e-5, 1e-5), "-2e-5");
  EXPECT_EQ(tick_text(-4, 2), "-4");
}

TEST(Number, FixedDecimals) {
  EXPECT_EQ(fixed(1234567.891, 2), "1,234,567.89");
  EXPECT_EQ(fixed(-0.001, 2), "0.00");
  EXPECT_EQ(fixed(-1234.5, 1), "-1,234.5");
  EXPECT_EQ(fixed(kNan, 2), "–");
  EXPECT_EQ(fixed(1e300, 2), "1e+300");
}

TEST(Html, EscapesAndEncodes) {
  EXPECT_EQ(escape_html("<a href=\"x\">'&'\x01\n</a>"),
            "&lt;a href=&quot;x&quot;&gt;&#39;&amp;&#39; \n&lt;/a&gt;");
  const auto encode = [](std::string_view text) {
    return base64({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  };
  EXPECT_EQ(encode(""), "");
  EXPECT_EQ(encode("f"), "Zg==");
  EXPECT_EQ(encode("fo"), "Zm8=");
  EXPECT_EQ(encode("foo"), "Zm9v");
  EXPECT_EQ(encode("foobar"), "Zm9vYmFy");
  EXPECT_EQ(encode("\xff\xfe\xfd"), "//79");
}

}  // namespace
}  // namespace tessera::monitor
