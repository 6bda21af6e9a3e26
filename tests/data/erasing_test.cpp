// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/augment/erasing.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "tessera/base/file.h"
#include "tests/error_text.h"

namespace tessera::data {
namespace {

constexpr int64_t kSide = 32;
constexpr float kBefore = 7;

std::vector<float> erased(const AugmentOptions& options, uint64_t key) {
  std::vector<float> numbers(3 * kSide * kSide, kBefore);
  Erasing(options).apply(key, 3, kSide, kSide, numbers.data());
  return numbers;
}

AugmentOptions always(ErasingMode mode) {
  AugmentOptions options;
  options.erasing = 1;
  options.erasing_mode = mode;
  return options;
}

/// The erased numbers; checks that they fill one box in each channel.
std::vector<float> box_of(const std::vector<float>& numbers) {
  std::vector<float> inside;
  int64_t left = kSide, right = -1, top = kSide, bottom = -1;
  for (int64_t i = 0; i < std::ssize(numbers); ++i) {
    if (numbers[static_cast<size_t>(i)] == kBefore) continue;
    inside.push_back(numbers[static_cast<size_t>(i)]);
    const int64_t y = i / kSide % kSide, x = i % kSide;
    left = std::min(left, x);
    right = std::max(right, x);
    top = std::min(top, y);
    bottom = std::max(bottom, y);
  }
  if (!inside.empty()) {
    EXPECT_EQ(std::ssize(inside), 3 * (right - left + 1) * (bottom - top + 1));
  }
  return inside;
}

TEST(Erasing, SizesAreTimms) {
  const auto cases = nlohmann::json::parse(
      read_file(std::string(TESSERA_SOURCE_DIR) + "/tests/data/augment_expected.json"))["erasing"];
  ASSERT_EQ(cases.size(), 4U);
  for (const auto& c : cases) {
    const int64_t width = c["width"], height = c["height"];
    Box box;
    const bool fits = erasing_size(c["area"].get<double>() * static_cast<double>(width * height), c["aspect"],
                                   width, height, &box);
    EXPECT_EQ(fits, c["box"][0] > 0) << c;
    if (!fits) continue;
    EXPECT_EQ(box.width, c["box"][0]) << c;
    EXPECT_EQ(box.height, c["box"][1]) << c;
  }
}

TEST(Erasing, ErasesOneBoxWithTheProbabilityAndAreaAskedFor) {
  AugmentOptions options = always(ErasingMode::kConst);
  options.erasing = 0.25;
  int count = 0;
  double share = 0;
  for (uint64_t key = 0; key < 4000; ++key) {
    const auto inside = box_of(erased(options, key));
    if (inside.empty()) continue;
    ++count;
    const double area = static_cast<double>(inside.size()) / (3 * kSide * kSide);
    EXPECT_GT(area, 0.01);
    EXPECT_LT(area, 0.37);
    share += area;
    for (const float number : inside) ASSERT_EQ(number, 0.0F);
  }
  EXPECT_NEAR(count, 1000, 100);
  EXPECT_NEAR(share / count, (0.02 + 1.0 / 3.0) / 2, 0.02);
}

TEST(Erasing, OneColourABoxOrNoise) {
  std::set<float> colours;
  for (uint64_t key = 0; key < 20; ++key) {
    const auto inside = box_of(erased(always(ErasingMode::kRand), key));
    const std::set<float> levels(inside.begin(), inside.end());
    EXPECT_EQ(levels.size(), 3U);  // one a channel
    colours.insert(levels.begin(), levels.end());
  }
  EXPECT_EQ(colours.size(), 60U);
  double sum = 0, squares = 0, count = 0;
  for (uint64_t key = 0; key < 200; ++key) {
    for (const float number : box_of(erased(always(ErasingMode::kPixel), key))) {
      sum += static_cast<double>(number);
      squares += static_cast<double>(number * number);
      ++count;
    }
  }
  EXPECT_NEAR(sum / count, 0, 0.02);
  EXPECT_NEAR(squares / count, 1, 0.03);
}

TEST(Erasing, SeveralBoxesShareTheArea) {
  AugmentOptions options = always(ErasingMode::kConst);
  options.erasing_count = 4;
  options.erasing_area_min = options.erasing_area_max = 0.2;
  std::set<int> boxes;
  for (uint64_t key = 0; key < 300; ++key) {
    const auto numbers = erased(options, key);
    const auto inside = std::count(numbers.begin(), numbers.end(), 0.0F);
    EXPECT_LE(static_cast<double>(inside) / (3 * kSide * kSide), 0.23);
    EXPECT_GT(inside, 0);
  }
}

TEST(Erasing, AFunctionOfItsKeyThatSurvivesTinyImages) {
  const AugmentOptions options = always(ErasingMode::kPixel);
  EXPECT_EQ(erased(options, 5), erased(options, 5));
  EXPECT_NE(erased(options, 5), erased(options, 6));
  for (uint64_t key = 0; key < 50; ++key) {
    std::vector<float> one(1, kBefore), line(5, kBefore);
    Erasing(options).apply(key, 1, 1, 1, one.data());
    Erasing(options).apply(key, 1, 1, 5, line.data());
  }
}

TEST(Erasing, Errors) {
  const auto error = [](auto change) {
    AugmentOptions options;
    change(options);
    return error_text([&] { Erasing{options}; });
  };
  EXPECT_EQ(error([](auto& o) { o.erasing = 1.5; }), "[data.erasing] data.erasing is 1.5: expected 0 to 1");
  EXPECT_EQ(error([](auto& o) { o.erasing_count = 0; }),
            "[data.erasing] data.erasing_count is 0: expected at least 1 box");
  EXPECT_EQ(error([](auto& o) { o.erasing_area_min = -0.5; }),
            "[data.erasing] data.erasing_area[0] is -0.5: expected at least 0");
  EXPECT_EQ(
      error([](auto& o) { o.erasing_area_max = 0.01; }),
      "[data.erasing] data.erasing_area[1] is 0.01: expected a value between data.erasing_area[0] and 1");
}

}  // namespace
}  // namespace tessera::data
