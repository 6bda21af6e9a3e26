// SPDX-License-Identifier: Apache-2.0
// big_vision's RandAugment (big_vision/pp/autoaugment.py): 16 operations, without identity and with Cutout
// and SolarizeAdd, each drawn one always applied, warps to the nearest pixel over a fill of 128.
#include <cmath>

#include "tessera/data/augment/policy_makers.h"

namespace tessera::data {
namespace {

constexpr Op kOps[] = {Op::kAutoContrast, Op::kEqualize,   Op::kInvert, Op::kRotate,
                       Op::kPosterize,    Op::kSolarize,   Op::kColor,  Op::kContrast,
                       Op::kBrightness,   Op::kSharpness,  Op::kShearX, Op::kShearY,
                       Op::kTranslateX,   Op::kTranslateY, Op::kCutout, Op::kSolarizeAdd};
constexpr double kCutoutPixels = 40, kTranslatePixels = 100;

class BigVisionRandAugment : public Policy {
 public:
  BigVisionRandAugment(int64_t layers, double magnitude)
      : Policy({Dialect::kTensorFlow, {128, 128, 128}}), layers_(layers), level_(magnitude / 10.0) {}

  std::vector<Operation> draw(Draws& draws, int64_t width, int64_t height) const override {
    std::vector<Operation> operations;
    for (int64_t layer = 0; layer < layers_; ++layer) {
      Operation operation;
      operation.op = kOps[draws.below(std::ssize(kOps))];
      operation.amount = amount(operation.op, draws);
      if (operation.op == Op::kCutout) {
        operation.x = draws.below(width);
        operation.y = draws.below(height);
      }
      operations.push_back(operation);
    }
    return operations;
  }

 private:
  double amount(Op op, Draws& draws) const {
    const auto with_sign = [&](double value) { return draws.coin() ? -value : value; };
    switch (op) {
      case Op::kRotate:
        return with_sign(level_ * 30.0);
      case Op::kShearX:
      case Op::kShearY:
        return with_sign(level_ * 0.3);
      case Op::kTranslateX:
      case Op::kTranslateY:
        return with_sign(level_ * kTranslatePixels);
      case Op::kPosterize:
        return std::trunc(level_ * 4);
      case Op::kSolarize:
        // Its threshold is a byte that overflows: at magnitude 10 everything is inverted, at 15 half of it.
        return std::fmod(std::trunc(level_ * 256), 256);
      case Op::kSolarizeAdd:
        return std::trunc(level_ * 110);
      case Op::kCutout:
        return std::trunc(level_ * kCutoutPixels);
      default:
        return level_ * 1.8 + 0.1;
    }
  }

  const int64_t layers_;
  const double level_;
};

}  // namespace

PolicyPointer big_vision_rand_augment(int64_t layers, double magnitude) {
  return std::make_unique<BigVisionRandAugment>(layers, magnitude);
}

}  // namespace tessera::data
