// SPDX-License-Identifier: Apache-2.0
// Encoded samples through the transform, against decoding the whole image first.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "tessera/base/file.h"
#include "tessera/base/random.h"
#include "tessera/data/crop.h"
#include "tessera/data/loader.h"
#include "tessera/data/orientation.h"
#include "tessera/data/pixel_kernels.h"
#include "tessera/data/transform.h"
#include "tests/data/shared_data.h"
#include "tests/error_text.h"
#include "tests/formats/jpeg_maker.h"

namespace tessera::data {
namespace {

using formats::Bytes;

/// Waves of several lengths and some noise, as a photo has.
Image photo(int64_t width, int64_t height, int64_t channels) {
  Image image{width, height, channels, {}};
  uint64_t element = 0;
  for (int64_t y = 0; y < height; ++y) {
    for (int64_t x = 0; x < width; ++x) {
      for (int64_t c = 0; c < channels; ++c) {
        const double at = static_cast<double>(x) / 9.0 + static_cast<double>(c);
        const double wave = 60 * std::sin(at) * std::cos(static_cast<double>(y) / 23.0) + 128;
        image.pixels.push_back(
            static_cast<uint8_t>(wave + static_cast<double>(random_below(5, element++, 24))));
      }
    }
  }
  return image;
}

Stored jpeg(int width, int height, const formats::JpegKind& kind = {}) {
  const Bytes bytes = formats::encode_jpeg(photo(width, height, formats::channels_of(kind.space)).pixels,
                                           width, height, kind);
  return {std::string(bytes.begin(), bytes.end()), {}};
}

Stored decoded(const Stored& stored) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(stored.file.data());
  return {{}, formats::decode_image({bytes, stored.file.size()}, "whole")};
}

TransformOptions options(int64_t size, TrainCrop crop) {
  TransformOptions o;
  o.image_size = size;
  o.train_crop = crop;
  o.dct_scaling = false;
  return o;
}

TEST(Decode, TheCropAloneGivesTheBytesOfTheWhole) {
  std::vector<Stored> samples = {jpeg(161, 120), jpeg(97, 140, {.across = 1, .down = 1}),
                                 jpeg(120, 90, {.progressive = true}),
                                 jpeg(70, 71, {.space = JCS_GRAYSCALE, .across = 1, .down = 1})};
  for (const bool bicubic : {false, true}) {
    for (const TrainCrop crop : {TrainCrop::kRandomResized, TrainCrop::kInception, TrainCrop::kCenter,
                                 TrainCrop::kNone, TrainCrop::kPad}) {
      TransformOptions o = options(56, crop);
      o.bicubic = bicubic;
      const Transform transform(o);
      for (const Stored& sample : samples) {
        const Stored whole = decoded(sample);
        EXPECT_EQ(transform.eval_image(sample, "s").pixels, transform.eval_image(whole, "s").pixels);
        for (uint64_t i = 0; i < 20; ++i) {
          EXPECT_EQ(transform.train_image(sample, "s", {1, 2, i}).pixels,
                    transform.train_image(whole, "s", {1, 2, i}).pixels);
        }
      }
    }
  }
}

TEST(Decode, ChannelsAreThoseAskedFor) {
  TransformOptions o = options(40, TrainCrop::kRandomResized);
  o.channels = 1;
  o.mean = {0.5F};
  o.std = {0.5F};
  const Image luma = Transform(o).eval_image(jpeg(90, 70), "s");
  EXPECT_EQ(luma.channels, 1);
  const Stored whole = decoded(jpeg(90, 70));
  EXPECT_EQ(luma.pixels,
            Transform(o).eval_image({{}, formats::convert_channels(whole.pixels, 1)}, "s").pixels);
  const Image gray = Transform(options(40, TrainCrop::kNone))
                         .eval_image(jpeg(90, 70, {.space = JCS_GRAYSCALE, .across = 1, .down = 1}), "s");
  ASSERT_EQ(gray.channels, 3);
  for (size_t i = 0; i < gray.pixels.size(); i += 3) {
    EXPECT_EQ(gray.pixels[i], gray.pixels[i + 1]);
    EXPECT_EQ(gray.pixels[i], gray.pixels[i + 2]);
  }
}

double mean_difference(const Bytes& a, const Bytes& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += std::abs(int{a[i]} - int{b[i]});
  return sum / static_cast<double>(a.size());
}

TEST(Decode, ScaledDecodingLooksTheSame) {
  TransformOptions exact = options(32, TrainCrop::kRandomResized), scaled = exact;
  exact.crop_scale_min = scaled.crop_scale_min = 0.5;
  scaled.dct_scaling = true;
  int differ = 0;
  double sum = 0;
  for (const auto& kind : {formats::JpegKind(), formats::JpegKind{.across = 1, .down = 1},
                           formats::JpegKind{.down = 1}, formats::JpegKind{.progressive = true}}) {
    const Stored sample = jpeg(403, 301, kind);
    for (uint64_t i = 0; i < 20; ++i) {
      const Image a = Transform(exact).train_image(sample, "s", {3, 1, i});
      const Image b = Transform(scaled).train_image(sample, "s", {3, 1, i});
      const double difference = mean_difference(a.pixels, b.pixels);  // another filter, sharper
      EXPECT_LT(difference, 5) << i;                                  // 1/8: a block is one pixel
      sum += difference;
      differ += a.pixels == b.pixels ? 0 : 1;
    }
  }
  EXPECT_EQ(differ, 80);  // it was in use
  EXPECT_LT(sum / 80, 2);
  // Evaluation stays exact, and so does a crop that has fewer than two pixels for an output.
  const Stored sample = jpeg(403, 301);
  EXPECT_EQ(Transform(scaled).eval_image(sample, "s").pixels,
            Transform(exact).eval_image(sample, "s").pixels);
  exact.image_size = scaled.image_size = 240;
  EXPECT_EQ(Transform(scaled).train_image(sample, "s", {3, 1, 7}).pixels,
            Transform(exact).train_image(sample, "s", {3, 1, 7}).pixels);
}

TEST(Decode, TrainingDoesNotSeeDamageBelowItsCrop) {
  Stored cut = jpeg(200, 640);
  cut.file.resize(cut.file.size() / 2);
  TransformOptions o = options(32, TrainCrop::kRandomResized);
  o.crop_scale_max = 0.1;
  const Transform transform(o);
  int good = 0, broken = 0;
  for (uint64_t i = 0; i < 60; ++i) {
    const std::string error = error_text([&] { transform.train_image(cut, "val/a/b.jpg", {1, 1, i}); });
    if (error == "no error") {
      ++good;
    } else {
      ++broken;
      EXPECT_EQ(error,
                "[formats.decode_jpeg] cannot decode the JPEG image val/a/b.jpg: the data end before the "
                "last pixel");
    }
  }
  EXPECT_GT(good, 5);
  EXPECT_GT(broken, 5);
}

TEST(TrainLoader, MakesBatchesInMemoryGivenBack) {
  const auto source = open_source("fake:40", "train", {12, 3, 4});
  for (const int64_t workers : {0, 2}) {
    LoaderOptions loader_options;
    loader_options.batch = 8;
    loader_options.workers = workers;
    TrainLoader fresh(*source, options(8, TrainCrop::kNone), loader_options, 0);
    TrainLoader recycling(*source, options(8, TrainCrop::kNone), loader_options, 0);
    std::set<const float*> given_back;  // with workers, which of them comes again first is chance
    bool seen_again = false;
    for (int i = 0; i < 12; ++i) {
      const Batch expected = fresh.next();
      Batch batch = recycling.next();
      EXPECT_EQ(batch.images, expected.images);
      EXPECT_EQ(batch.labels, expected.labels);
      EXPECT_EQ(batch.samples, expected.samples);
      seen_again = seen_again || given_back.contains(batch.images.data());
      given_back.insert(batch.images.data());
      recycling.give_back(std::move(batch));
    }
    EXPECT_TRUE(seen_again);
  }
}

TEST(Orientation, EqualsPillowsExifTranspose) {
  const auto cases = nlohmann::json::parse(
      read_file(std::string(TESSERA_SOURCE_DIR) + "/tests/data/orientation_expected.json"));
  ASSERT_EQ(cases.size(), 8U);
  Image stored{5, 3, 3, {}};
  for (int i = 0; i < 45; ++i) stored.pixels.push_back(static_cast<uint8_t>(i));
  for (const auto& c : cases) {
    const Image upright = turned(stored, turn_of(c["orientation"]));
    EXPECT_EQ(upright.width, c["width"]);
    EXPECT_EQ(upright.height, c["height"]);
    EXPECT_EQ(upright.pixels, c["pixels"].get<Bytes>()) << c["orientation"];
  }
}

// As decoding the whole, turning it upright (as Pillow would), and going on as if it had been stored so.
TEST(Orientation, OfAPhotoIsAppliedWhenAskedFor) {
  for (uint8_t orientation = 1; orientation <= 8; ++orientation) {
    formats::JpegKind kind;
    kind.exif = {'E',  'x',  'i', 'f', 0, 0, 'M', 'M', 0, 42,          0, 0, 0, 8, 0, 1,
                 0x01, 0x12, 0,   3,   0, 0, 0,   1,   0, orientation, 0, 0, 0, 0, 0, 0};
    const Stored sample = jpeg(120, 80, kind);
    const Stored plain = decoded(sample), upright = {{}, turned(plain.pixels, turn_of(orientation))};
    TransformOptions o = options(40, TrainCrop::kRandomResized);
    EXPECT_EQ(Transform(o).eval_image(sample, "s").pixels, Transform(o).eval_image(plain, "s").pixels);
    o.exif = true;
    const auto expect_near = [&](const Image& found, const Image& expected) {
      // Where sides change places, so do the two passes and their rounding.
      for (size_t i = 0; i < found.pixels.size(); ++i) {
        ASSERT_NEAR(found.pixels[i], expected.pixels[i], orientation == 1 ? 0 : 1) << int{orientation};
      }
    };
    expect_near(Transform(o).eval_image(sample, "s"), Transform(o).eval_image(upright, "s"));
    for (uint64_t i = 0; i < 20; ++i) {
      expect_near(Transform(o).train_image(sample, "s", {2, 1, i}),
                  Transform(o).train_image(upright, "s", {2, 1, i}));
    }
  }
}

TEST(Crop, InceptionStaysInsideAndCoversItsRange) {
  TransformOptions o;
  for (const auto& [width, height] :
       std::vector<std::pair<int64_t, int64_t>>{{500, 375}, {1, 1}, {7, 300}, {300, 2}, {64, 64}}) {
    double smallest = 1, largest = 0, flattest = 9, steepest = 0;
    for (uint64_t key = 0; key < 500; ++key) {
      const Box box = inception_crop(width, height, o, key);
      ASSERT_TRUE(box.x >= 0 && box.y >= 0 && box.width >= 1 && box.height >= 1);
      ASSERT_LE(box.x + box.width, width);
      ASSERT_LE(box.y + box.height, height);
      const auto w = static_cast<double>(box.width), h = static_cast<double>(box.height);
      const double share = w * h / static_cast<double>(width * height);
      smallest = std::min(smallest, share);
      largest = std::max(largest, share);
      flattest = std::min(flattest, w / h);
      steepest = std::max(steepest, w / h);
    }
    if (width != 500) continue;
    EXPECT_GE(smallest, 0.08);
    EXPECT_LT(smallest, 0.11);
    EXPECT_GT(largest, 0.9);
    EXPECT_NEAR(flattest, 0.75, 0.02);
    EXPECT_NEAR(steepest, 1.333, 0.02);
  }
  EXPECT_EQ(inception_crop(300, 2, o, 1).width, 300);  // no crop of such a strip has the shape: all of it
}

// The height is uniform between those of the least and the largest area: larger crops come oftener than in
// torchvision's, where the area is.
TEST(Crop, InceptionDrawsHeightsEvenly) {
  TransformOptions o;
  o.crop_ratio_min = o.crop_ratio_max = 1.0;
  o.crop_scale_min = 0.04;
  double sum = 0;
  for (uint64_t key = 0; key < 4000; ++key) {
    sum += static_cast<double>(inception_crop(400, 400, o, random_key(1, key)).height);
  }
  EXPECT_NEAR(sum / 4000, (80 + 400) / 2.0, 5);
}

TEST(PixelKernels, AreTheSameOnEveryCpu) {
  const PixelKernels* fast = avx512_kernels();
  if (fast == nullptr)
    GTEST_SKIP() << "this CPU has no AVX-512 VBMI and VNNI: the plain kernels are all there is";
  const PixelKernels& plain = plain_kernels();
  for (const Filter filter : {Filter::kBilinear, Filter::kBicubic}) {
    for (const auto& [in, out] : std::vector<std::pair<int64_t, int64_t>>{{1, 5},
                                                                          {3, 3},
                                                                          {4, 9},
                                                                          {7, 224},
                                                                          {50, 16},
                                                                          {224, 224},
                                                                          {318, 224},
                                                                          {500, 17},
                                                                          {900, 31},
                                                                          {64, 1}}) {
      for (const int64_t channels : {1, 3}) {
        Taps taps = make_taps({in, 0, static_cast<double>(in), out, 0, out}, filter);
        if (in % 2 == 0) taps.mirror();
        Bytes row(static_cast<size_t>(in * channels + formats::kRowPadding));
        for (size_t i = 0; i < row.size(); ++i) {
          const uint32_t word = random_word(static_cast<uint64_t>(in), i);
          row[i] = word % 4 == 0 ? 255 : word % 4 == 1 ? 0 : static_cast<uint8_t>(word >> 8);
        }
        const auto count = static_cast<size_t>(out * channels);
        Bytes a(count + formats::kRowPadding), b = a;
        PackedTaps packed = plain.pack(taps, in), fast_packed = fast->pack(taps, in);
        plain.across(row.data(), packed, channels, a.data());
        fast->across(row.data(), fast_packed, channels, b.data());
        a.resize(count);
        b.resize(count);
        ASSERT_EQ(a, b) << in << " to " << out << ", channels " << channels;
      }
    }
  }
  for (const int64_t count : {1, 63, 64, 65, 672}) {
    for (const int64_t taps : {1, 2, 5, 40}) {
      std::vector<Bytes> rows;
      std::vector<const uint8_t*> pointers;
      std::vector<int32_t> weights;
      for (int64_t k = 0; k < taps; ++k) {
        rows.emplace_back();
        for (int64_t i = 0; i < count + formats::kRowPadding; ++i) {
          rows.back().push_back(
              static_cast<uint8_t>(random_word(static_cast<uint64_t>(k), static_cast<uint64_t>(i))));
        }
        weights.push_back((k % 3 == 1 ? -1 : 2) * (1 << kFractionBits) / static_cast<int32_t>(taps));
      }
      for (const Bytes& row : rows) pointers.push_back(row.data());
      Bytes a(static_cast<size_t>(count)), b = a;
      plain.down(pointers.data(), weights.data(), taps, count, a.data());
      fast->down(pointers.data(), weights.data(), taps, count, b.data());
      ASSERT_EQ(a, b) << count << " x " << taps;
      std::vector<float> x(static_cast<size_t>(3 * count)), y = x;
      const std::vector<float> scale = {0.017F, 0.0175F, 0.0174F}, shift = {-2.1F, -2.03F, -1.8F};
      const Bytes pixels(rows[0].begin(), rows[0].begin() + count / 3 * 3);
      const int64_t width = count / 3;
      plain.normalise(pixels.data(), width, 3, scale.data(), shift.data(), width, x.data());
      fast->normalise(pixels.data(), width, 3, scale.data(), shift.data(), width, y.data());
      ASSERT_EQ(x, y) << width;
    }
  }
}

}  // namespace
}  // namespace tessera::data
