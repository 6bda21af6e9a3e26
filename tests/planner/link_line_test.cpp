// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/link_line.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tessera::planner {
namespace {

LinkTimes line_through(std::vector<LinkTimes::Sample> samples) {
  LinkTimes link;
  link.samples = std::move(samples);
  fit_line(&link);
  return link;
}

TEST(LinkLine, PointsOfALineGiveTheLine) {
  std::vector<LinkTimes::Sample> samples;
  for (int64_t bytes = 4096; bytes <= 64 << 20; bytes *= 4)
    samples.push_back({bytes, 3e-5 + static_cast<double>(bytes) / 2e9});
  const LinkTimes link = line_through(samples);
  EXPECT_NEAR(link.latency, 3e-5, 1e-10);
  EXPECT_NEAR(link.bytes_per_second, 2e9, 1e4);
  EXPECT_NEAR(link.spread, 0, 1e-6);
}

TEST(LinkLine, SmallMessagesCountAsMuchAsLargeOnes) {
  // The large message takes 10 % longer than 1 ms and 1 GB/s, which is 100 times the latency.
  const LinkTimes link = line_through({{1000, 1.001e-3}, {1'000'000, 2e-3}, {1'000'000'000, 1.1}});
  EXPECT_NEAR(link.latency, 1e-3, 1e-4);
  EXPECT_LT(link.spread, 0.1);
}

TEST(LinkLine, LatencyIsNotNegativeAndTheRateIsFinite) {
  const LinkTimes steep = line_through({{1000, 1e-6}, {2000, 4e-6}});
  EXPECT_EQ(steep.latency, 0);
  EXPECT_GT(steep.bytes_per_second, 0);
  const LinkTimes falling = line_through({{1000, 2e-6}, {2000, 1e-6}});
  EXPECT_GT(falling.latency, 1e-6);
  EXPECT_TRUE(std::isfinite(falling.bytes_per_second));
  const LinkTimes one = line_through({{1000, 1e-3}});
  EXPECT_NEAR(one.bytes_per_second, 1e6, 1);
}

}  // namespace
}  // namespace tessera::planner
