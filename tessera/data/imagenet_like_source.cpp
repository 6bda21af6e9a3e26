// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "tessera/base/error.h"
#include "tessera/base/random.h"
#include "tessera/data/measure.h"
#include "tessera/formats/jpeg.h"

namespace tessera::data {
namespace {

constexpr int kQuality = 93;
constexpr int kOctaves = 6;  // waves of 128 pixels and shorter
constexpr uint64_t kSeed = 0x1336E7;

/// Smooth values in [-1, 1] from a grid of random ones, `cell` pixels apart.
class SmoothNoise {
 public:
  SmoothNoise(uint64_t key, int64_t width, int64_t height, int64_t cell)
      : cell_(cell),
        columns_(width / cell + 2),
        corners_(static_cast<size_t>(columns_ * (height / cell + 2))) {
    fill_uniform(key, 0, corners_);
    for (int64_t i = 0; i < cell; ++i) {
      const float t = static_cast<float>(i) / static_cast<float>(cell);
      ease_.push_back(t * t * (3 - 2 * t));
    }
  }

  float at(int64_t x, int64_t y) const {
    const float* above = corners_.data() + y / cell_ * columns_ + x / cell_;
    const float* below = above + columns_;
    const float u = ease_[static_cast<size_t>(x % cell_)], v = ease_[static_cast<size_t>(y % cell_)];
    const float top = above[0] + u * (above[1] - above[0]), bottom = below[0] + u * (below[1] - below[0]);
    return 2 * (top + v * (bottom - top)) - 1;
  }

 private:
  int64_t cell_, columns_;
  std::vector<float> corners_, ease_;  // [rows, columns] in [0, 1); [cell]
};

/// Octaves of smooth noise whose strength falls as their wavelength, as in photos, and a sensor's grain, both
/// stronger in some places than in others: flat and busy blocks stand side by side.
Image picture(uint64_t key, int64_t width, int64_t height) {
  Image image{width, height, 3, std::vector<uint8_t>(static_cast<size_t>(3 * width * height))};
  std::vector<SmoothNoise> octaves;
  for (uint64_t octave = 0; octave < kOctaves; ++octave) {
    octaves.emplace_back(random_key(key, octave), width, height, int64_t{128} >> octave);
  }
  const SmoothNoise busy(random_key(key, "busy"), width, height, 96);
  const SmoothNoise red(random_key(key, "red"), width, height, 64);
  const SmoothNoise blue(random_key(key, "blue"), width, height, 64);
  const uint64_t grain = random_key(key, "grain");
  uint8_t* out = image.pixels.data();
  for (int64_t y = 0; y < height; ++y) {
    for (int64_t x = 0; x < width; ++x) {
      const float texture = 0.55F + 0.5F * busy.at(x, y);
      float luma = 128, strength = 90;
      for (int octave = 0; octave < kOctaves; ++octave, strength *= 0.55F) {
        luma += octaves[static_cast<size_t>(octave)].at(x, y) * strength * (octave < 3 ? 1.0F : 2 * texture);
      }
      const float tints[3] = {60 * red.at(x, y), 0, 60 * blue.at(x, y)};
      const auto words = philox(grain, static_cast<uint64_t>(y * width + x));
      for (size_t c = 0; c < 3; ++c) {
        const float noise = static_cast<float>((words[3] >> 8 & 255) + (words[c] & 63)) - 159.0F;
        *out++ = static_cast<uint8_t>(std::clamp(luma + tints[c] + noise * 0.50F * texture, 0.0F, 255.0F));
      }
    }
  }
  return image;
}

class ImagenetLikeSource : public Source {
 public:
  explicit ImagenetLikeSource(int64_t count) {
    static constexpr int64_t kEdges[][2] = {{500, 375}, {375, 500}, {500, 333}, {500, 375}, {480, 360}};
    for (int64_t i = 0; i < count; ++i) {
      const auto& edges = kEdges[i % 5];
      files_.push_back(formats::encode_jpeg(
          picture(random_key(kSeed, static_cast<uint64_t>(i)), edges[0], edges[1]), kQuality));
    }
  }

  int64_t size() const override { return static_cast<int64_t>(files_.size()); }
  int64_t label(int64_t) const override { return 0; }
  Stored load(int64_t index) const override {
    const auto& file = files_[static_cast<size_t>(index)];
    return {std::string(file.begin(), file.end()), {}};
  }
  std::string sample_name(int64_t index) const override { return concat("imagenet-like[", index, "]"); }
  const std::vector<std::string>& classes() const override { return classes_; }

 private:
  std::vector<std::vector<uint8_t>> files_;
  std::vector<std::string> classes_ = {"picture"};
};

}  // namespace

std::unique_ptr<Source> open_imagenet_like(int64_t count) {
  if (count < 1)
    user_error({.where = "data.imagenet_like",
                .problem = concat("the number of images is ", count),
                .expected = "at least 1"});
  return std::make_unique<ImagenetLikeSource>(count);
}

}  // namespace tessera::data
