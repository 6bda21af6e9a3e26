// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/augment/erasing.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <span>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/random.h"

namespace tessera::data {
namespace {

constexpr int kTries = 10;
constexpr double kLeastAspect = 0.3;
constexpr float kNoLimit = 1e9F;  // normal numbers are not cut off

void check_erasing(bool good, const char* name, double found, const char* expected) {
  if (!good)
    user_error({.where = "data.erasing", .problem = concat(name, " is ", found), .expected = expected});
}

/// What fills one box. All numbers of a box are elements of one stream.
/// (More than 5 parameters: a loop over a plain array and its shape.)
void fill_box(const Box& box, ErasingMode mode, uint64_t key, int64_t channels, int64_t height, int64_t width,
              float* numbers) {
  float colors[3] = {};
  if (mode == ErasingMode::kRand) fill_normal(key, 0, colors, 0, 1, kNoLimit);
  uint64_t element = 0;
  for (int64_t c = 0; c < channels; ++c) {
    for (int64_t y = box.y; y < box.y + box.height; ++y) {
      const std::span<float> row(numbers + (c * height + y) * width + box.x, static_cast<size_t>(box.width));
      if (mode == ErasingMode::kPixel) {
        fill_normal(key, element, row, 0, 1, kNoLimit);
        element += row.size();
      } else {
        std::fill(row.begin(), row.end(), colors[c]);
      }
    }
  }
}

}  // namespace

bool erasing_size(double area, double aspect, int64_t width, int64_t height, Box* box) {
  box->height = static_cast<int64_t>(std::nearbyint(std::sqrt(area * aspect)));  // halves to even, as Python
  box->width = static_cast<int64_t>(std::nearbyint(std::sqrt(area / aspect)));
  return box->width < width && box->height < height;
}

Erasing::Erasing(const AugmentOptions& options) : options_(options) {
  check_erasing(options.erasing >= 0 && options.erasing <= 1, "data.erasing", options.erasing, "0 to 1");
  check_erasing(options.erasing_count >= 1, "data.erasing_count", static_cast<double>(options.erasing_count),
                "at least 1 box");
  check_erasing(options.erasing_area_min >= 0, "data.erasing_area[0]", options.erasing_area_min,
                "at least 0");
  check_erasing(options.erasing_area_max >= options.erasing_area_min && options.erasing_area_max <= 1,
                "data.erasing_area[1]", options.erasing_area_max,
                "a value between data.erasing_area[0] and 1");
}

std::vector<ErasedBox> Erasing::boxes(uint64_t key, int64_t height, int64_t width) const {
  Draws draws(key);
  if (!draws.chance(options_.erasing)) return {};
  const int64_t count = 1 + draws.below(options_.erasing_count);
  const double whole = static_cast<double>(width * height) / static_cast<double>(count);
  const double log_aspect = -std::log(kLeastAspect);
  std::vector<ErasedBox> found;
  for (int64_t i = 0; i < count; ++i) {
    for (int attempt = 0; attempt < kTries; ++attempt) {
      const double area = draws.uniform(options_.erasing_area_min, options_.erasing_area_max) * whole;
      const double aspect = std::exp(draws.uniform(-log_aspect, log_aspect));
      Box box;
      if (!erasing_size(area, aspect, width, height, &box)) continue;
      box.y = draws.below(height - box.height + 1);
      box.x = draws.below(width - box.width + 1);
      found.push_back({box, random_key(random_key(key, "noise"), static_cast<uint64_t>(i))});
      break;
    }
  }
  return found;
}

void Erasing::apply(uint64_t key, int64_t channels, int64_t height, int64_t width, float* numbers) const {
  for (const ErasedBox& erased : boxes(key, height, width)) {
    fill_box(erased.box, options_.erasing_mode, erased.noise, channels, height, width, numbers);
  }
}

std::vector<Erasure> Erasing::erasures(uint64_t key, int64_t channels, int64_t height, int64_t width) const {
  std::vector<Erasure> erasures;
  for (const auto& [box, noise] : boxes(key, height, width)) {
    std::vector<float> contents;
    if (options_.erasing_mode == ErasingMode::kPixel) {
      contents.resize(static_cast<size_t>(channels * box.height * box.width));
    } else if (options_.erasing_mode == ErasingMode::kRand) {
      contents.resize(static_cast<size_t>(channels));
    }
    fill_normal(noise, 0, contents, 0, 1, kNoLimit);  // the elements fill_box takes, in its order
    erasures.push_back({box, std::move(contents)});
  }
  return erasures;
}

}  // namespace tessera::data
