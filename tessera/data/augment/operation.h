// SPDX-License-Identifier: Apache-2.0
// One operation with all its parameters drawn, ready to be applied. Pure function, safe from any thread.
#pragma once

#include <cstdint>

#include "tessera/data/augment/warp.h"
#include "tessera/data/resize.h"

namespace tessera::data {

enum class Op {
  kIdentity,
  kAutoContrast,
  kEqualize,
  kInvert,
  kPosterize,    // amount: bits kept
  kSolarize,     // threshold
  kSolarizeAdd,  // what is added
  kBrightness,   // factors of the blend, 1 changes nothing
  kContrast,
  kColor,
  kSharpness,
  kHue,     // turns
  kBlur,    // standard deviation, pixels
  kShearX,  // pixels of x for one of y
  kShearY,
  kTranslateX,  // pixels
  kTranslateY,
  kRotate,  // degrees, counterclockwise in Pillow's dialect
  kCutout,  // half the side, pixels
};

/// Whose arithmetic: Pillow's (timm, torchvision) or TensorFlow's (big_vision), which warps to the nearest
/// pixel.
enum class Dialect { kPillow, kTensorFlow };

struct Operation {
  Op op = Op::kIdentity;
  double amount = 0;
  Filter filter = Filter::kBilinear;  // of shears, translations and rotations
  int64_t x = 0, y = 0;               // kCutout: the centre
};

/// What a policy's operations have in common.
struct Style {
  Dialect dialect = Dialect::kPillow;
  Fill fill = {0, 0, 0};
};

void apply(const Operation& operation, const Style& style, Image* image);

}  // namespace tessera::data
