// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/transform.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "tessera/base/file.h"
#include "tessera/base/random.h"
#include "tessera/data/crop.h"
#include "tessera/data/resize.h"
#include "tests/error_text.h"

namespace tessera::data {
namespace {

// The formula of make_resize_expected.py.
Image picture(int64_t width, int64_t height, int64_t channels) {
  Image image{width, height, channels, {}};
  for (int64_t y = 0; y < height; ++y) {
    for (int64_t x = 0; x < width; ++x) {
      for (int64_t c = 0; c < channels; ++c) {
        image.pixels.push_back(
            static_cast<uint8_t>(x * 7 + y * 13 + c * 29 + x * y * 3 + (x / 5) * (y / 3) * 17));
      }
    }
  }
  return image;
}

TEST(Resize, EqualsPillowAndTorchvision) {
  const auto cases =
      nlohmann::json::parse(read_file(std::string(TESSERA_SOURCE_DIR) + "/tests/data/resize_expected.json"));
  ASSERT_EQ(cases.size(), 20U);
  for (const auto& c : cases) {
    const int64_t width = c["width"], height = c["height"], channels = c["channels"];
    const int64_t out_width = c["out_width"], out_height = c["out_height"];
    Scaling scaling{
        {0, 0, width, height}, out_width, out_height, {0, 0, out_width, out_height}, Filter::kBilinear};
    if (c["kind"] == "crop") scaling.source = {c["box"][0], c["box"][1], c["box"][2], c["box"][3]};
    if (c["kind"] == "eval") {
      TransformOptions options;
      options.image_size = 14;
      scaling = eval_scaling(width, height, options);
    }
    if (c["filter"] == "bicubic") scaling.filter = Filter::kBicubic;
    const Image out = resize(picture(width, height, channels), scaling);
    EXPECT_EQ(out.pixels, c["pixels"].get<std::vector<uint8_t>>())
        << c["kind"] << " " << width << " x " << height;
  }
}

TEST(Resize, AWindowIsACutOutOfTheWhole) {
  const Image image = picture(31, 27, 3);
  const Image whole = resize(image, {{2, 3, 29, 20}, 16, 12, {0, 0, 16, 12}, Filter::kBicubic});
  const Image part = resize(image, {{2, 3, 29, 20}, 16, 12, {5, 4, 7, 6}, Filter::kBicubic});
  for (int64_t y = 0; y < 6; ++y) {
    for (int64_t i = 0; i < 21; ++i) {
      EXPECT_EQ(part.pixels[static_cast<size_t>(y * 21 + i)],
                whole.pixels[static_cast<size_t>((y + 4) * 48 + 15 + i)]);
    }
  }
}

TEST(Crop, RandomResizedStaysInsideAndCoversItsRange) {
  TransformOptions options;
  for (const auto& [width, height] :
       std::vector<std::pair<int64_t, int64_t>>{{100, 80}, {1, 1}, {7, 300}, {300, 2}}) {
    double smallest = 1, largest = 0;
    for (uint64_t key = 0; key < 500; ++key) {
      const Box box = random_resized_crop(width, height, options, key);
      ASSERT_GE(box.x, 0);
      ASSERT_GE(box.y, 0);
      ASSERT_GE(box.width, 1);
      ASSERT_GE(box.height, 1);
      ASSERT_LE(box.x + box.width, width);
      ASSERT_LE(box.y + box.height, height);
      const double share = static_cast<double>(box.width * box.height) / static_cast<double>(width * height);
      smallest = std::min(smallest, share);
      largest = std::max(largest, share);
    }
    if (width == 100) {
      EXPECT_LT(smallest, 0.12);
      EXPECT_GT(largest, 0.85);
    }
  }
}

/// Shares of `count` numbers in [low, high) that lie in each tenth of it.
std::vector<double> tenths(const std::vector<double>& numbers, double low, double high) {
  std::vector<double> shares(10);
  for (const double number : numbers) {
    EXPECT_GE(number, low);
    EXPECT_LE(number, high);
    const auto tenth = static_cast<int64_t>((number - low) / (high - low) * 10);
    shares[static_cast<size_t>(std::clamp<int64_t>(tenth, 0, 9))] +=
        1.0 / static_cast<double>(numbers.size());
  }
  return shares;
}

// Where every try fits, area, logarithm of the ratio and place are uniform and independent of each other.
TEST(Crop, RandomResizedDrawsAreaAndLogarithmOfTheRatioEvenly) {
  constexpr int64_t kSide = 4000;  // of a pixel's rounding nothing is left
  constexpr double kArea = kSide * kSide, kRounding = 1e-3;
  constexpr int kDraws = 20'000;
  constexpr double kSix = 6 * 0.00213;  // standard deviations of a tenth's share of as many
  TransformOptions options;
  options.crop_scale_min = 0.08;
  options.crop_scale_max = 0.5;  // sqrt(0.5 * 2) <= 1: any ratio fits
  options.crop_ratio_min = 0.5;
  options.crop_ratio_max = 2.0;
  std::vector<double> areas, ratios, x, y;
  double together = 0;  // mean product of both from their middles
  for (uint64_t key = 0; key < kDraws; ++key) {
    const Box box = random_resized_crop(kSide, kSide, options, random_key(1, key));
    const auto w = static_cast<double>(box.width), h = static_cast<double>(box.height);
    areas.push_back(w * h / kArea);
    ratios.push_back(std::log2(w / h));
    if (box.width < kSide) x.push_back(static_cast<double>(box.x) / static_cast<double>(kSide - box.width));
    if (box.height < kSide) y.push_back(static_cast<double>(box.y) / static_cast<double>(kSide - box.height));
    together += (areas.back() - 0.29) / 0.21 * ratios.back() / kDraws;
  }
  const struct {
    const char* what;
    const std::vector<double>& numbers;
    double low, high;
  } kUniform[] = {{"area", areas, 0.08 - kRounding, 0.5 + kRounding},
                  {"log2 of the ratio", ratios, -1 - kRounding, 1 + kRounding},
                  {"x", x, 0, 1},
                  {"y", y, 0, 1}};
  for (const auto& [what, numbers, low, high] : kUniform) {
    for (const double share : tenths(numbers, low, high)) EXPECT_NEAR(share, 0.1, kSix) << what;
  }
  EXPECT_NEAR(together, 0, 6.0 / 3 / std::sqrt(kDraws));
  // Of a quarter of a small square every place comes, the last ones too.
  options.crop_scale_min = options.crop_scale_max = 0.25;
  options.crop_ratio_min = options.crop_ratio_max = 1;
  std::set<int64_t> columns, rows;
  for (uint64_t key = 0; key < 300; ++key) {
    const Box box = random_resized_crop(10, 10, options, random_key(2, key));
    ASSERT_EQ(box.width, 5);
    ASSERT_EQ(box.height, 5);
    columns.insert(box.x);
    rows.insert(box.y);
  }
  EXPECT_EQ(columns, (std::set<int64_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(rows, columns);
}

TEST(Crop, RandomResizedStaysWithinTheRatios) {
  TransformOptions options;  // 3/4 to 4/3
  double least = 10, most = 0;
  for (uint64_t key = 0; key < 5000; ++key) {
    const Box box = random_resized_crop(2000, 1500, options, key);
    const double ratio = static_cast<double>(box.width) / static_cast<double>(box.height);
    least = std::min(least, ratio);
    most = std::max(most, ratio);
  }
  EXPECT_GE(least, 0.749);
  EXPECT_LT(least, 0.76);
  EXPECT_LE(most, 1.335);
  EXPECT_GT(most, 1.32);
}

TEST(Crop, RandomResizedFallsBackToTheCentre) {
  TransformOptions options;
  options.crop_scale_min = options.crop_scale_max = 1.0;
  options.crop_ratio_min = options.crop_ratio_max = 1.0;  // the whole area as a square: impossible here
  const Box wide = random_resized_crop(90, 40, options, 3);
  EXPECT_EQ((std::vector<int64_t>{wide.x, wide.y, wide.width, wide.height}),
            (std::vector<int64_t>{25, 0, 40, 40}));
  const Box tall = random_resized_crop(10, 31, options, 3);
  EXPECT_EQ((std::vector<int64_t>{tall.x, tall.y, tall.width, tall.height}),
            (std::vector<int64_t>{0, 10, 10, 10}));
}

TEST(Crop, TheDecoderShrinksAsFarAsEveryOutputKeepsAPixel) {
  const struct {
    int64_t width, height, to_width, to_height, most, shrink;
  } kCases[] = {
      {223, 223, 224, 224, 8, 1},   {224, 224, 224, 224, 8, 1},   {447, 500, 224, 224, 8, 1},
      {500, 447, 224, 224, 8, 1},   {448, 448, 224, 224, 8, 2},   {895, 4000, 224, 224, 8, 2},
      {896, 896, 224, 224, 8, 4},   {4000, 1791, 224, 224, 8, 4}, {1792, 1792, 224, 224, 8, 8},
      {9999, 9999, 224, 224, 8, 8},                                // a JPEG's transform has no smaller one
      {1792, 1792, 224, 224, 4, 4}, {1792, 1792, 224, 224, 1, 1},  // what the reader can do at most
      {64, 32, 16, 16, 8, 2},       {64, 32, 16, 8, 8, 4},
  };
  for (const auto& c : kCases) {
    const Scaling scaling{{3, 5, c.width, c.height}, c.to_width, c.to_height, {}, Filter::kBilinear};
    EXPECT_EQ(choose_shrink(scaling, c.most), c.shrink)
        << c.width << " x " << c.height << " to " << c.to_width << " x " << c.to_height << ", at most "
        << c.most;
  }
}

TEST(Crop, EvalScaling) {
  TransformOptions options;
  const Scaling scaling = eval_scaling(500, 375, options);
  EXPECT_EQ(scaling.height, 256);
  EXPECT_EQ(scaling.width, 341);
  EXPECT_EQ(scaling.window.x, 58);  // 58.5 to even
  EXPECT_EQ(scaling.window.y, 16);
  options.eval_crop = EvalCrop::kSquash;
  const Scaling squash = eval_scaling(500, 375, options);
  EXPECT_EQ(squash.width, 224);
  EXPECT_EQ(squash.height, 224);
}

Stored stored(const Image& image) { return {{}, image}; }

TransformOptions plain(int64_t size, int64_t channels) {
  TransformOptions options;
  options.image_size = size;
  options.channels = channels;
  options.train_crop = TrainCrop::kNone;
  options.eval_crop = EvalCrop::kSquash;
  options.flip = false;
  options.mean = {0.25F};
  options.std = {0.5F};
  return options;
}

TEST(Transform, NormalisesToPlanes) {
  TransformOptions options = plain(2, 3);
  options.mean = {0.0F, 0.5F, 1.0F};
  options.std = {1.0F, 0.5F, 0.25F};
  std::vector<float> out(12), trained(12);
  const Image image{2, 2, 3, {0, 0, 0, 255, 255, 255, 51, 51, 51, 102, 102, 102}};
  Transform(options).eval(stored(image), "picture", out.data());
  Transform(options).train(stored(image), "picture", {1, 2, 3}, trained.data());
  const std::vector<float> expected = {0, 1, 0.2F, 0.4F, -1, 1, -0.6F, -0.2F, -4, 0, -3.2F, -2.4F};
  for (size_t i = 0; i < 12; ++i) EXPECT_NEAR(out[i], expected[i], 1e-6) << i;
  EXPECT_EQ(trained, out);
}

TEST(Transform, FlipMirrorsHalfOfTheSamples) {
  TransformOptions options = plain(5, 3);
  const Image image = picture(5, 5, 3);
  std::vector<float> straight(75), out(75);
  Transform(options).train(stored(image), "picture", {0, 0, 0}, straight.data());
  options.flip = true;
  int flipped = 0;
  for (uint64_t sample = 0; sample < 200; ++sample) {
    Transform(options).train(stored(image), "picture", {0, 0, sample}, out.data());
    if (out == straight) continue;
    ++flipped;
    for (size_t row = 0; row < 15; ++row) {
      for (size_t x = 0; x < 5; ++x) ASSERT_EQ(out[row * 5 + x], straight[row * 5 + 4 - x]);
    }
  }
  EXPECT_NEAR(flipped, 100, 30);
}

TEST(Transform, PadCropShiftsOverZeros) {
  TransformOptions options = plain(4, 1);
  options.train_crop = TrainCrop::kPad;
  options.crop_padding = 2;
  options.mean = {0.0F};
  options.std = {1.0F / 255.0F};
  Image image{4, 4, 1, {}};
  for (int i = 1; i <= 16; ++i) image.pixels.push_back(static_cast<uint8_t>(i));
  std::set<std::pair<int, int>> seen;
  std::vector<float> out(16);
  for (uint64_t sample = 0; sample < 400; ++sample) {
    Transform(options).train(stored(image), "picture", {9, 1, sample}, out.data());
    int found = 0;
    for (int dy = -2; dy <= 2; ++dy) {
      for (int dx = -2; dx <= 2; ++dx) {
        bool same = true;
        for (int y = 0; y < 4; ++y) {
          for (int x = 0; x < 4; ++x) {
            const int sy = y + dy, sx = x + dx;
            const bool inside = sy >= 0 && sy < 4 && sx >= 0 && sx < 4;
            const float expected = inside ? image.pixels[static_cast<size_t>(sy * 4 + sx)] : 0.0F;
            same = same && std::abs(out[static_cast<size_t>(y * 4 + x)] - expected) < 1e-3F;
          }
        }
        if (same) {
          ++found;
          seen.insert({dx, dy});
        }
      }
    }
    ASSERT_EQ(found, 1) << sample;
  }
  EXPECT_EQ(seen.size(), 25U);
}

TEST(Transform, SquashRandomTakesAnyPartOfTheSquashedImage) {
  TransformOptions whole = plain(6, 1), options = plain(4, 1);
  whole.train_crop = TrainCrop::kNone;
  options.train_crop = TrainCrop::kSquashRandom;
  options.crop_from = 6;
  const Image image = picture(23, 17, 1);
  std::vector<float> all(36), out(16);
  Transform(whole).train(stored(image), "picture", {}, all.data());
  std::set<std::pair<size_t, size_t>> seen;
  for (uint64_t sample = 0; sample < 200; ++sample) {
    Transform(options).train(stored(image), "picture", {9, 1, sample}, out.data());
    for (size_t y = 0; y < 3; ++y) {
      for (size_t x = 0; x < 3; ++x) {
        bool same = true;
        for (size_t i = 0; i < 16; ++i) same = same && out[i] == all[(y + i / 4) * 6 + x + i % 4];
        if (same) seen.insert({x, y});
      }
    }
  }
  EXPECT_EQ(seen.size(), 9U);
  options = plain(7, 1);
  options.train_crop = TrainCrop::kSquashRandom;
  out.resize(49);
  Transform(options).train(stored(image), "picture", {}, out.data());  // from 8 x 8
}

TEST(Transform, PaddingLargerThanTheImage) {
  TransformOptions options = plain(3, 1);
  options.train_crop = TrainCrop::kPad;
  options.crop_padding = 50;
  std::vector<float> out(9);
  for (uint64_t sample = 0; sample < 100; ++sample)
    Transform(options).train(stored(picture(3, 3, 1)), "picture", {0, 0, sample}, out.data());
}

TEST(Transform, ASampleIsAFunctionOfSeedEpochAndSample) {
  TransformOptions options = plain(8, 3);
  options.train_crop = TrainCrop::kRandomResized;
  options.flip = true;
  const Transform transform(options);
  const Image image = picture(40, 30, 3);
  const auto look = [&](SampleKey key) {
    std::vector<float> out(192);
    transform.train(stored(image), "picture", key, out.data());
    return out;
  };
  EXPECT_EQ(look({1, 2, 3}), look({1, 2, 3}));
  EXPECT_NE(look({1, 2, 3}), look({0, 2, 3}));
  EXPECT_NE(look({1, 2, 3}), look({1, 0, 3}));
  EXPECT_NE(look({1, 2, 3}), look({1, 2, 0}));
}

TEST(Transform, Errors) {
  const auto error = [](auto change) {
    TransformOptions options = plain(8, 3);
    change(options);
    return error_text([&] { Transform{options}; });
  };
  EXPECT_EQ(error([](auto& o) { o.image_size = 0; }),
            "[data.transform] the image size is 0: expected at least 1");
  EXPECT_EQ(error([](auto& o) { o.channels = 4; }),
            "[data.transform] the number of channels is 4: expected 1 or 3");
  EXPECT_EQ(error([](auto& o) { o.crop_scale_min = 0; }),
            "[data.transform] data.crop_scale[0] is 0: expected above 0");
  EXPECT_EQ(error([](auto& o) { o.crop_scale_max = 1.5; }),
            "[data.transform] data.crop_scale[1] is 1.5: expected a value between data.crop_scale[0] and 1");
  EXPECT_EQ(error([](auto& o) { o.crop_ratio_min = -1; }),
            "[data.transform] data.crop_ratio[0] is -1: expected above 0");
  EXPECT_EQ(error([](auto& o) { o.crop_ratio_max = 0.5; }),
            "[data.transform] data.crop_ratio[1] is 0.5: expected at least data.crop_ratio[0]");
  EXPECT_EQ(error([](auto& o) { o.crop_padding = -1; }),
            "[data.transform] data.crop_padding is -1: expected at least 0");
  EXPECT_EQ(error([](auto& o) {
              o.train_crop = TrainCrop::kSquashRandom;
              o.crop_from = 7;
            }),
            "[data.transform] data.crop_from is 7: expected 0, or at least the image size");
  EXPECT_EQ(error([](auto& o) { o.eval_crop_ratio = 1.25; }),
            "[data.transform] data.eval_crop_ratio is 1.25: expected above 0 and at most 1");
  EXPECT_EQ(error([](auto& o) {
              o.mean = {0, 0};
            }),
            "[data.transform] data.mean has 2 values: expected 1 or 3");
  EXPECT_EQ(error([](auto& o) { o.std = {}; }), "[data.transform] data.std has 0 values: expected 1 or 3");
  EXPECT_EQ(error([](auto& o) { o.std = {0}; }), "[data.transform] data.std is 0: expected values above 0");
}

}  // namespace
}  // namespace tessera::data
