// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/crop.h"

#include <algorithm>
#include <cmath>

#include "tessera/base/random.h"

namespace tessera::data {
namespace {

constexpr int kCropTries = 10;
constexpr uint64_t kInceptionTries = 100;

double uniform(uint64_t key, uint64_t index, double low, double high) {
  return low + (high - low) * random_uniform53(key, index);
}

// Python's round: halves go to the even neighbour, as in the default rounding mode.
int64_t round_even(double x) { return static_cast<int64_t>(std::nearbyint(x)); }

}  // namespace

Box random_resized_crop(int64_t width, int64_t height, const TransformOptions& options, uint64_t key) {
  const double area = static_cast<double>(width) * static_cast<double>(height);
  const double log_low = std::log(options.crop_ratio_min), log_high = std::log(options.crop_ratio_max);
  uint64_t index = 0;
  for (int attempt = 0; attempt < kCropTries; ++attempt) {
    const double target = area * uniform(key, index++, options.crop_scale_min, options.crop_scale_max);
    const double aspect = std::exp(uniform(key, index++, log_low, log_high));
    const int64_t w = round_even(std::sqrt(target * aspect)), h = round_even(std::sqrt(target / aspect));
    if (w < 1 || w > width || h < 1 || h > height) continue;
    const auto y = random_below(key, index++, static_cast<uint64_t>(height - h + 1));
    const auto x = random_below(key, index++, static_cast<uint64_t>(width - w + 1));
    return {static_cast<int64_t>(x), static_cast<int64_t>(y), w, h};
  }
  const double ratio = static_cast<double>(width) / static_cast<double>(height);
  Box box{0, 0, width, height};
  if (ratio < options.crop_ratio_min) {
    box.height = round_even(static_cast<double>(width) / options.crop_ratio_min);
  } else if (ratio > options.crop_ratio_max) {
    box.width = round_even(static_cast<double>(height) * options.crop_ratio_max);
  }
  box.width = std::clamp<int64_t>(box.width, 1, width);
  box.height = std::clamp<int64_t>(box.height, 1, height);
  box.x = (width - box.width) / 2;
  box.y = (height - box.height) / 2;
  return box;
}

Box inception_crop(int64_t width, int64_t height, const TransformOptions& options, uint64_t key) {
  const double area = static_cast<double>(width) * static_cast<double>(height);
  const double least = options.crop_scale_min * area, most = options.crop_scale_max * area;
  const auto below = [&](uint64_t index, int64_t bound) {
    return static_cast<int64_t>(random_below(key, index, static_cast<uint64_t>(std::max<int64_t>(1, bound))));
  };
  for (uint64_t index = 0; index < 4 * kInceptionTries; index += 4) {
    const double aspect = uniform(key, index, options.crop_ratio_min, options.crop_ratio_max);
    const auto width_of = [&](int64_t h) { return round_even(static_cast<double>(h) * aspect); };
    int64_t h = round_even(std::sqrt(least / aspect));
    int64_t highest = round_even(std::sqrt(most / aspect));
    if (width_of(highest) > width) {
      highest = static_cast<int64_t>((static_cast<double>(width) + 0.5 - 1e-7) / aspect);
      if (width_of(highest) > width) --highest;
    }
    highest = std::min(highest, height);
    h = std::min(h, highest);
    h += below(index + 1, highest - h + 1);
    // Rounding alone shall not fail a try.
    const auto area_of = [&](int64_t rows) { return static_cast<double>(rows * width_of(rows)); };
    if (area_of(h) < least) ++h;
    if (area_of(h) > most) --h;
    const int64_t w = width_of(h);
    if (h < 1 || w < 1 || h > height || w > width || area_of(h) < least || area_of(h) > most) continue;
    return {below(index + 3, width - w), below(index + 2, height - h), w, h};
  }
  return {0, 0, width, height};
}

Scaling squash_scaling(int64_t width, int64_t height, const TransformOptions& options) {
  const int64_t size = options.image_size;
  const Filter filter = options.bicubic ? Filter::kBicubic : Filter::kBilinear;
  return {{0, 0, width, height}, size, size, {0, 0, size, size}, filter};
}

void take_random_window(Scaling& scaling, const TransformOptions& options, uint64_t key) {
  const int64_t size = options.image_size;
  const int64_t from =
      options.crop_from > 0 ? options.crop_from : round_even(static_cast<double>(size) * 8 / 7);
  const auto places = static_cast<uint64_t>(from - size + 1);
  scaling.width = scaling.height = from;
  scaling.window.x = static_cast<int64_t>(random_below(key, 0, places));
  scaling.window.y = static_cast<int64_t>(random_below(key, 1, places));
}

Scaling center_scaling(int64_t width, int64_t height, const TransformOptions& options) {
  const int64_t size = options.image_size;
  Scaling scaling = squash_scaling(width, height, options);
  // The small addend keeps 224 / 0.875 at 256 where the division falls just below.
  const auto side = static_cast<int64_t>(static_cast<double>(size) / options.eval_crop_ratio + 1e-9);
  if (options.eval_crop == EvalCrop::kSquashCenter) {
    scaling.width = scaling.height = side;
  } else {
    const int64_t shorter = std::min(width, height);
    scaling.width = side * width / shorter;
    scaling.height = side * height / shorter;
  }
  scaling.window.x = round_even(static_cast<double>(scaling.width - size) / 2.0);
  scaling.window.y = round_even(static_cast<double>(scaling.height - size) / 2.0);
  return scaling;
}

int64_t choose_shrink(const Scaling& scaling, int64_t most) {
  int64_t shrink = 1;
  while (2 * shrink <= most && scaling.source.width >= 2 * shrink * scaling.width &&
         scaling.source.height >= 2 * shrink * scaling.height) {
    shrink *= 2;
  }
  return shrink;
}

Scaling eval_scaling(int64_t width, int64_t height, const TransformOptions& options) {
  const bool squash = options.eval_crop == EvalCrop::kSquash;
  return squash ? squash_scaling(width, height, options) : center_scaling(width, height, options);
}

}  // namespace tessera::data
