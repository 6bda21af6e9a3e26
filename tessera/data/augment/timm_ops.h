// SPDX-License-Identifier: Apache-2.0
// timm's named operations and what a magnitude means to each (timm/data/auto_augment.py). Private to this
// folder.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "tessera/data/augment/policy.h"

namespace tessera::data::timm {

inline constexpr double kLevels = 10;  // magnitudes are tenths

/// Sides of the image, in pixels: what relative translations refer to.
struct Canvas {
  double width = 0, height = 0;
};

struct NamedOp {
  std::string_view name;
  Op op;
  double (*amount)(double level, const Canvas& canvas, Draws& draws);  // null: none
};

/// Requires: a name of the table.
const NamedOp* named_op(std::string_view name);

/// How magnitudes vary from image to image.
struct MagnitudeNoise {
  double std = 0;  // of a normal distribution; infinite: uniform in 0..magnitude
  double max = kLevels;
};

/// One operation of a policy: applied with a probability, at a magnitude.
struct Step {
  const NamedOp* op = nullptr;
  double probability = 1, magnitude = kLevels;
};

/// Appends the operation, if chance wants it.
void draw_step(const Step& step, const MagnitudeNoise& noise, const PolicyOptions& options,
               const Canvas& canvas, Draws& draws, std::vector<Operation>* operations);

/// AutoAugment's ImageNet policies by timm's names; empty for another name.
std::vector<std::vector<Step>> auto_augment_policy(std::string_view name);

struct WeightedOp {
  std::string_view name;
  double weight;
};
/// RandAugment's sets: "" (all), "weights", "3a", "3aw"; empty for another name. Weights are 0 where all are
/// equally likely and may come twice; where given, an image gets no operation twice.
std::vector<WeightedOp> rand_augment_set(std::string_view name, bool increasing);

}  // namespace tessera::data::timm
