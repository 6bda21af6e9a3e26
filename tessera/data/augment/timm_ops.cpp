// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/augment/timm_ops.h"

#include <algorithm>
#include <cmath>

#include "tessera/base/error.h"

namespace tessera::data::timm {
namespace {

double signed_by_chance(double value, Draws& draws) { return draws.coin() ? -value : value; }

// Truncated to whole numbers where timm does.
double steps(double level, double range) { return std::trunc(level / kLevels * range); }

double rotate(double level, const Canvas&, Draws& draws) {
  return signed_by_chance(level / kLevels * 30.0, draws);
}
double posterize(double level, const Canvas&, Draws&) { return steps(level, 4); }
double posterize_increasing(double level, const Canvas&, Draws&) {
  return std::max(0.0, 4 - steps(level, 4));
}
double posterize_original(double level, const Canvas&, Draws&) { return std::min(8.0, steps(level, 4) + 4); }
double solarize(double level, const Canvas&, Draws&) { return std::min(256.0, steps(level, 256)); }
double solarize_increasing(double level, const Canvas&, Draws&) {
  return 256 - std::min(256.0, steps(level, 256));
}
double solarize_add(double level, const Canvas&, Draws&) { return std::min(128.0, steps(level, 110)); }
double enhance(double level, const Canvas&, Draws&) { return level / kLevels * 1.8 + 0.1; }
double enhance_increasing(double level, const Canvas&, Draws& draws) {
  return std::max(0.1, 1.0 + signed_by_chance(level / kLevels * 0.9, draws));
}
double shear(double level, const Canvas&, Draws& draws) {
  return signed_by_chance(level / kLevels * 0.3, draws);
}
double translate_x(double level, const Canvas& canvas, Draws& draws) {
  return signed_by_chance(level / kLevels * 0.45, draws) * canvas.width;
}
double translate_y(double level, const Canvas& canvas, Draws& draws) {
  return signed_by_chance(level / kLevels * 0.45, draws) * canvas.height;
}
// Half to wholly gray: the factor of what colour is left.
double desaturate(double level, const Canvas&, Draws&) {
  return 1.0 - std::clamp(0.5 + 0.5 * level / kLevels, 0.5, 1.0);
}
double blur(double level, const Canvas&, Draws&) { return std::clamp(0.1 + 1.9 * level / kLevels, 0.1, 2.0); }
double blur_by_chance(double level, const Canvas&, Draws& draws) {
  return draws.uniform(0.1, 2.0 * std::clamp(level / kLevels, 0.0, 1.0));
}

constexpr NamedOp kOps[] = {
    {"AutoContrast", Op::kAutoContrast, nullptr},
    {"Equalize", Op::kEqualize, nullptr},
    {"Invert", Op::kInvert, nullptr},
    {"Rotate", Op::kRotate, rotate},
    {"Posterize", Op::kPosterize, posterize},
    {"PosterizeIncreasing", Op::kPosterize, posterize_increasing},
    {"PosterizeOriginal", Op::kPosterize, posterize_original},
    {"Solarize", Op::kSolarize, solarize},
    {"SolarizeIncreasing", Op::kSolarize, solarize_increasing},
    {"SolarizeAdd", Op::kSolarizeAdd, solarize_add},
    {"Color", Op::kColor, enhance},
    {"ColorIncreasing", Op::kColor, enhance_increasing},
    {"Contrast", Op::kContrast, enhance},
    {"ContrastIncreasing", Op::kContrast, enhance_increasing},
    {"Brightness", Op::kBrightness, enhance},
    {"BrightnessIncreasing", Op::kBrightness, enhance_increasing},
    {"Sharpness", Op::kSharpness, enhance},
    {"SharpnessIncreasing", Op::kSharpness, enhance_increasing},
    {"ShearX", Op::kShearX, shear},
    {"ShearY", Op::kShearY, shear},
    {"TranslateXRel", Op::kTranslateX, translate_x},
    {"TranslateYRel", Op::kTranslateY, translate_y},
    {"Desaturate", Op::kColor, desaturate},
    {"GaussianBlur", Op::kBlur, blur},
    {"GaussianBlurRand", Op::kBlur, blur_by_chance},
};

bool warps(Op op) {
  return op == Op::kRotate || op == Op::kShearX || op == Op::kShearY || op == Op::kTranslateX ||
         op == Op::kTranslateY;
}

}  // namespace

const NamedOp* named_op(std::string_view name) {
  const auto* found =
      std::find_if(std::begin(kOps), std::end(kOps), [&](const NamedOp& op) { return op.name == name; });
  TESSERA_CHECK(found != std::end(kOps), "", name);
  return found;
}

// (More than 5 parameters: what a step depends on, and the two that it changes.)
void draw_step(const Step& step, const MagnitudeNoise& noise, const PolicyOptions& options,
               const Canvas& canvas, Draws& draws, std::vector<Operation>* operations) {
  if (step.probability < 1 && !draws.chance(step.probability)) return;
  double magnitude = step.magnitude;
  if (std::isinf(noise.std)) {
    magnitude = draws.uniform(0, magnitude);
  } else if (noise.std > 0) {
    magnitude = draws.normal(magnitude, noise.std);
  }
  magnitude = std::clamp(magnitude, 0.0, noise.max);
  Operation operation;
  operation.op = step.op->op;
  if (step.op->amount != nullptr) operation.amount = step.op->amount(magnitude, canvas, draws);
  operation.filter = options.filter;
  if (options.random_filter && warps(operation.op)) {
    operation.filter = draws.coin() ? Filter::kBicubic : Filter::kBilinear;
  }
  operations->push_back(operation);
}

}  // namespace tessera::data::timm
