// SPDX-License-Identifier: Apache-2.0
// The layer that images enter by, for images with other channels and patches of another size, beside timm's.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "tessera/weights/channels.h"
#include "tessera/weights/patches.h"
#include "tessera/weights/resize_matrix.h"
#include "tests/weights/formula.h"

namespace tessera::weights {
namespace {

using testing::formula;

/// As make_first_layer_expected.py's.
std::vector<float> kernels(int64_t count) {
  std::vector<float> numbers = formula(static_cast<size_t>(count));
  for (float& number : numbers) number /= 4;
  return numbers;
}

nlohmann::json expected(const char* what) {
  return nlohmann::json::parse(
      std::ifstream(TESSERA_SOURCE_DIR "/tests/weights/first_layer_expected.json"))[what];
}

void expect_near(const std::vector<float>& found, const std::vector<double>& wanted, double tolerance) {
  ASSERT_EQ(found.size(), wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) ASSERT_NEAR(found[i], wanted[i], tolerance) << "element " << i;
}

TEST(Channels, ByHand) {
  // Two kernels of three channels of 1 x 2 pixels.
  const std::vector<float> rgb = {1, 2, 10, 20, 100, 200, 3, 4, 30, 40, 300, 400};
  EXPECT_EQ(adapt_channels(rgb, 3, 1, 2), (std::vector<float>{111, 222, 333, 444}));
  EXPECT_EQ(adapt_channels(rgb, 3, 3, 2), rgb);
  EXPECT_EQ(adapt_channels(rgb, 3, 6, 2),
            (std::vector<float>{0.5F, 1, 5,  10, 50,  100, 0.5F, 1, 5,  10, 50,  100,
                                1.5F, 2, 15, 20, 150, 200, 1.5F, 2, 15, 20, 150, 200}));
  EXPECT_EQ(adapt_channels(rgb, 3, 4, 2), (std::vector<float>{0.75F, 1.5F, 7.5F, 15, 75, 150, 0.75F, 1.5F,  //
                                                              2.25F, 3, 22.5F, 30, 225, 300, 2.25F, 3}));
  EXPECT_EQ(adapt_channels(std::vector<float>{6, 9}, 1, 3, 1), (std::vector<float>{2, 2, 2, 3, 3, 3}));
  EXPECT_EQ(describe_channels(3, 1), "3 -> 1 channels, summed");
  EXPECT_EQ(describe_channels(3, 4), "3 -> 4 channels, repeated times 3/4");
}

TEST(Channels, AreTimms) {
  for (const auto& one : expected("channels")) {
    const int64_t from = one["from"], to = one["to"];
    SCOPED_TRACE(std::to_string(from) + " to " + std::to_string(to));
    expect_near(adapt_channels(kernels(2 * from * 9), from, to, 9), one["kernels"], 1e-7);
  }
}

TEST(Channels, MeanAndDeviationBecomeOneNumber) {
  EXPECT_EQ(adapt_pixels({0.5F}), std::vector<float>{0.5F});
  const auto mean = adapt_pixels({0.485F, 0.456F, 0.406F});
  ASSERT_EQ(mean.size(), 1U);
  EXPECT_NEAR(mean[0], 0.449, 1e-7);
}

TEST(Patches, AreTimms) {
  for (const auto& one : expected("patches")) {
    const int64_t from = one["from"], to = one["to"];
    SCOPED_TRACE(std::to_string(from) + " to " + std::to_string(to));
    expect_near(resample_patches(kernels(2 * from * from), from, to), one["kernels"], 1e-5);
  }
}

/// Of a square image, the bicubic resize.
std::vector<double> resized(const std::vector<float>& image, int64_t from, int64_t to) {
  const auto rows = bicubic_rows(from, to);
  std::vector<double> result(static_cast<size_t>(to * to));
  for (size_t y = 0; y < rows.size(); ++y) {
    for (size_t x = 0; x < rows.size(); ++x) {
      for (size_t j = 0; j < rows[y].weights.size(); ++j) {
        for (size_t i = 0; i < rows[x].weights.size(); ++i) {
          const auto row = static_cast<size_t>(rows[y].first) + j,
                     column = static_cast<size_t>(rows[x].first) + i;
          result[y * rows.size() + x] += rows[y].weights[j] * rows[x].weights[i] *
                                         static_cast<double>(image[row * static_cast<size_t>(from) + column]);
        }
      }
    }
  }
  return result;
}

// A larger patch holds all that the smaller one held: the kernel answers exactly the same.
TEST(Patches, AnEnlargedPatchIsAnsweredAsBefore) {
  for (const auto& [from, to] : {std::pair<int64_t, int64_t>{4, 7}, {8, 16}, {14, 16}, {1, 3}}) {
    const auto kernel = kernels(from * from);
    const auto larger = resample_patches(kernel, from, to);
    for (int64_t k = 0; k < 3; ++k) {
      auto image = formula(static_cast<size_t>(from * from * 3));
      image.erase(image.begin(), image.begin() + static_cast<std::ptrdiff_t>(k * from * from));
      image.resize(static_cast<size_t>(from * from));
      const double before = std::inner_product(kernel.begin(), kernel.end(), image.begin(), 0.0);
      const auto shown = resized(image, from, to);
      const double after = std::inner_product(larger.begin(), larger.end(), shown.begin(), 0.0);
      EXPECT_NEAR(before, after, 1e-5) << from << " to " << to;
      EXPECT_GT(std::abs(before), 1e-3);
    }
  }
}

TEST(Patches, TheSameSizeIsTheSame) {
  const auto kernel = kernels(2 * 5 * 5);
  EXPECT_EQ(resample_patches(kernel, 5, 5), kernel);
}

}  // namespace
}  // namespace tessera::weights
