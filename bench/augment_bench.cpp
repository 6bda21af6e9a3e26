// SPDX-License-Identifier: Apache-2.0
// What each augmentation costs for one image of 224 x 224, RGB.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "tessera/base/random.h"
#include "tessera/data/augment/augmenter.h"
#include "tessera/data/augment/mix.h"
#include "tessera/data/augment/operation.h"

namespace tessera::data {
namespace {

constexpr int64_t kSide = 224;

/// A smooth picture with noise: neither plain nor only texture.
Image photo() {
  Image image{kSide, kSide, 3, {}};
  const uint64_t key = random_key(1, "photo");
  for (int64_t i = 0; i < kSide * kSide * 3; ++i) {
    const int64_t slope = i / 3 % kSide / 2 + i / 3 / kSide / 3 + i % 3 * 20;
    image.pixels.push_back(static_cast<uint8_t>(slope + random_below(key, static_cast<uint64_t>(i), 32)));
  }
  return image;
}

struct Case {
  const char* name;
  Op op;
  double amount;
  Filter filter = Filter::kBilinear;
  Dialect dialect = Dialect::kPillow;
};

constexpr Case kCases[] = {
    {"auto_contrast", Op::kAutoContrast, 0},
    {"equalize", Op::kEqualize, 0},
    {"invert", Op::kInvert, 0},
    {"posterize", Op::kPosterize, 4},
    {"solarize", Op::kSolarize, 128},
    {"solarize_add", Op::kSolarizeAdd, 99},
    {"brightness", Op::kBrightness, 1.8},
    {"contrast", Op::kContrast, 1.8},
    {"color", Op::kColor, 1.8},
    {"sharpness", Op::kSharpness, 1.8},
    {"hue", Op::kHue, 0.1},
    {"blur", Op::kBlur, 1.5},
    {"rotate_bilinear", Op::kRotate, 27},
    {"rotate_bicubic", Op::kRotate, 27, Filter::kBicubic},
    {"shear_bicubic", Op::kShearX, 0.27, Filter::kBicubic},
    {"translate_bicubic", Op::kTranslateX, 90, Filter::kBicubic},
    {"big_vision_rotate", Op::kRotate, 27, Filter::kBilinear, Dialect::kTensorFlow},
    {"big_vision_color", Op::kColor, 1.8, Filter::kBilinear, Dialect::kTensorFlow},
    {"big_vision_sharpness", Op::kSharpness, 1.8, Filter::kBilinear, Dialect::kTensorFlow},
};

void run_operation(benchmark::State& state, const Case& c) {
  const Image before = photo();
  Image image = before;
  for (auto _ : state) {
    image.pixels = before.pixels;  // 0.005 ms
    apply({c.op, c.amount, c.filter}, {c.dialect, {124, 116, 104}}, &image);
    benchmark::DoNotOptimize(image.pixels.data());
  }
}

void run_policy(benchmark::State& state, const char* policy) {
  AugmentOptions options;
  options.policy = policy;
  const Augmenter augmenter(options, {0.485F, 0.456F, 0.406F}, Filter::kBicubic);
  const Image before = photo();
  Image image = before;
  uint64_t key = 0;
  for (auto _ : state) {
    image.pixels = before.pixels;
    augmenter.image(key++, &image);
    benchmark::DoNotOptimize(image.pixels.data());
  }
}

void run_mix(benchmark::State& state, bool cut) {
  constexpr int64_t kNumbers = 3 * kSide * kSide;
  ImageMixing options;
  (cut ? options.cutmix : options.mixup) = 1;
  Batch batch;
  batch.channels = 3;
  batch.height = batch.width = kSide;
  batch.size = 8;
  batch.images.resize(8 * kNumbers, 0.5F);
  batch.labels.resize(8);
  batch.second_labels.resize(8);
  batch.label_weights.resize(8);
  int64_t step = 0;
  for (auto _ : state) {
    mix(options, {1, step++, 0, 8, 0}, 0, 8, nullptr, &batch);
    benchmark::DoNotOptimize(batch.images.data());
  }
  state.SetItemsProcessed(state.iterations() * 8);
}

void run_erasing(benchmark::State& state, ErasingMode mode) {
  AugmentOptions options;
  options.erasing = 1;
  options.erasing_mode = mode;
  const Erasing erasing(options);
  std::vector<float> numbers(3 * kSide * kSide);
  uint64_t key = 0;
  for (auto _ : state) {
    erasing.apply(key++, 3, kSide, kSide, numbers.data());
    benchmark::DoNotOptimize(numbers.data());
  }
}

const bool kRegistered = [] {
  const auto add = [](const std::string& name, auto function, auto argument) {
    benchmark::RegisterBenchmark(name.c_str(), function, argument)->Unit(benchmark::kMillisecond);
  };
  for (const Case& c : kCases) add(c.name, run_operation, c);
  for (const char* policy : {"rand-m9-inc1", "original", "3a", "ta_wide", "bv-randaug:2,15"}) {
    add(policy, run_policy, policy);
  }
  add("mixup_of_8", run_mix, false);
  add("cutmix_of_8", run_mix, true);
  add("erasing_const", run_erasing, ErasingMode::kConst);
  add("erasing_pixel", run_erasing, ErasingMode::kPixel);
  return true;
}();

}  // namespace
}  // namespace tessera::data
