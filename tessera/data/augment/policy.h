// SPDX-License-Identifier: Apache-2.0
// Which operations an image undergoes: the published policies, by their published names. Const calls are safe
// from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tessera/data/augment/draws.h"
#include "tessera/data/augment/operation.h"

namespace tessera::data {

class Policy {
 public:
  explicit Policy(Style style) : style_(style) {}
  virtual ~Policy() = default;
  /// The operations for one image of this size, in order.
  virtual std::vector<Operation> draw(Draws& draws, int64_t width, int64_t height) const = 0;
  const Style& style() const { return style_; }

 protected:
  Style style_;
};

/// What a policy takes from the rest of the transform.
struct PolicyOptions {
  Filter filter = Filter::kBilinear;  // of warps
  bool random_filter = false;         // draw bilinear or bicubic for each
  Fill mean = {124, 116, 104};        // timm's fill: the mean, in levels
};

/// Reads the name of a policy:
///   rand-m9-n3-p0.5-mstd0.5-mmax10-inc1-tweights  timm's RandAugment (Cubuk et al., arXiv 1909.13719):
///   magnitude
///       m of 10, n operations (2), each applied with probability p (0.5), standard deviation of the
///       magnitude (0; above 100: uniform in 0..m), its largest value (10), operations that grow with the
///       magnitude (0), and the set: weights, 3a, 3aw (none: all 15). Pieces in any order.
///   original, originalr, v0, v0r, 3a [-mstd0.5]   timm's AutoAugment (arXiv 1805.09501): the ImageNet policy
///   of
///       the paper, or of the TPU's EfficientNet code; r: posterize as in the researchers' code; 3a: one of
///       solarize, grayscale and blur (DeiT III, arXiv 2204.07118)
///   bv-randaug:2,15   big_vision's RandAugment: layers, magnitude; 16 operations, always applied
///   tv-randaug:2,9    torchvision's RandAugment: operations, magnitude of 31 bins
///   ta_wide           TrivialAugmentWide (Müller and Hutter, arXiv 2103.10158), as torchvision's
/// Errors: UserError that names the bad piece.
std::unique_ptr<const Policy> parse_policy(const std::string& text, const PolicyOptions& options);

/// torchvision's ColorJitter: brightness, contrast, saturation and hue in a random order, each drawn from
/// 1 - x..1 + x (not below 0), the hue from -x..x. `amounts`: [all but hue], [b, c, s] or [b, c, s, h].
/// Errors: UserError on another number of values, or values out of range.
std::unique_ptr<const Policy> color_jitter(const std::vector<float>& amounts);

}  // namespace tessera::data
