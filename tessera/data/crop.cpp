#include "tessera/data/crop.h"

#include <algorithm>
#include <cmath>

#include "tessera/base/random.h"

namespace tessera::data {
namespace {

constexpr int kTries = 10;

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
  for (int attempt = 0; attempt < kTries; ++attempt) {
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

Scaling eval_scaling(int64_t width, int64_t height, const TransformOptions& options) {
  const int64_t size = options.image_size;
  Scaling scaling{{0, 0, width, height}, size, size, {0, 0, size, size}, Filter::kBilinear};
  if (options.bicubic) scaling.filter = Filter::kBicubic;
  if (options.eval_crop == EvalCrop::kSquash) return scaling;
  // The small addend keeps 224 / 0.875 at 256 where the division falls just below.
  const auto side = static_cast<int64_t>(static_cast<double>(size) / options.eval_crop_ratio + 1e-9);
  const int64_t shorter = std::min(width, height);
  scaling.width = side * width / shorter;
  scaling.height = side * height / shorter;
  scaling.window.x = round_even(static_cast<double>(scaling.width - size) / 2.0);
  scaling.window.y = round_even(static_cast<double>(scaling.height - size) / 2.0);
  return scaling;
}

}  // namespace tessera::data
