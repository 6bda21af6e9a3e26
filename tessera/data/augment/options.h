// SPDX-License-Identifier: Apache-2.0
// What is done to training images beside cropping and flipping. Plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::data {

enum class ErasingMode { kConst, kRand, kPixel };  // zeros, one normal colour, normal noise

/// What one image undergoes, between its crop and its batch.
struct AugmentOptions {
  std::string policy;                 // see parse_policy; empty: none
  bool random_interpolation = false;  // warps draw bilinear or bicubic, else data.interpolation
  std::vector<float>
      color_jitter;    // [all] or [brightness, contrast, saturation] or these and hue; empty: off
  double erasing = 0;  // probability
  ErasingMode erasing_mode = ErasingMode::kConst;
  int64_t erasing_count = 1;  // boxes of an image, 1 to this; they share the area
  double erasing_area_min = 0.02, erasing_area_max = 1.0 / 3.0;
};

enum class MixMode { kBatch, kPair, kElement };  // what shares a draw: a group, two partners, nothing

/// How images of a step are mixed with each other.
struct ImageMixing {
  double mixup = 0, cutmix = 0;      // alpha of Beta(alpha, alpha); 0: off
  std::vector<float> cutmix_minmax;  // least and most share of each side; given: instead of cutmix
  double probability = 1, switch_probability = 0.5;  // of mixing at all; of CutMix where both are on
  MixMode mode = MixMode::kBatch;
  int64_t group = 64;          // kBatch: consecutive positions of the global batch that share a draw
  int64_t off_epoch = 0;       // from this epoch on nothing is mixed; 0: never
  bool at_least_half = false;  // Mixup's own share is max(lambda, 1 - lambda), as in big_vision

  bool any() const { return mixup > 0 || cutmix > 0 || !cutmix_minmax.empty(); }
};

}  // namespace tessera::data
