// SPDX-License-Identifier: Apache-2.0
// Policies over tables of bins: torchvision's RandAugment and TrivialAugmentWide.
#include <cmath>

#include "tessera/base/error.h"
#include "tessera/data/augment/policy_makers.h"

namespace tessera::data {
namespace {

constexpr int64_t kBins = 31;

/// What the bins of an operation mean: evenly from `first` to `last`, and a sign by chance.
struct Space {
  Op op;
  double first = 0, last = 0;
  bool with_sign = false;
};

// As torch.linspace: a float step, from both ends, rounded once. It decides which whole pixel a translation
// is cut to.
float at_bin(const Space& space, int64_t bin) {
  const auto step =
      static_cast<double>(static_cast<float>(space.last - space.first) / static_cast<float>(kBins - 1));
  return static_cast<float>(bin < kBins / 2 ? space.first + step * static_cast<double>(bin)
                                            : space.last - step * static_cast<double>(kBins - 1 - bin));
}

/// The operation of one bin. An enhancement's bin says how far its factor is from 1.
Operation operation_of(const Space& space, int64_t bin, const PolicyOptions& options, Draws& draws) {
  Operation operation;
  operation.op = space.op;
  operation.filter = options.filter;
  if (options.random_filter) operation.filter = draws.coin() ? Filter::kBicubic : Filter::kBilinear;
  auto amount = static_cast<double>(at_bin(space, bin));
  if (space.with_sign && draws.coin()) amount = -amount;
  switch (space.op) {
    case Op::kBrightness:
    case Op::kContrast:
    case Op::kColor:
    case Op::kSharpness:
      operation.amount = 1.0 + amount;
      break;
    case Op::kPosterize:
      operation.amount = std::nearbyint(amount);  // halves to even, as torch.round
      break;
    case Op::kTranslateX:
    case Op::kTranslateY:
      operation.amount = std::trunc(amount);  // whole pixels
      break;
    default:
      operation.amount = amount;
  }
  return operation;
}

Style torchvision_style() { return {Dialect::kPillow, {0, 0, 0}}; }

class TorchvisionRandAugment : public Policy {
 public:
  TorchvisionRandAugment(int64_t layers, int64_t magnitude, const PolicyOptions& options)
      : Policy(torchvision_style()), layers_(layers), magnitude_(magnitude), options_(options) {}

  std::vector<Operation> draw(Draws& draws, int64_t width, int64_t height) const override {
    const double across = 150.0 / 331.0 * static_cast<double>(width);
    const double down = 150.0 / 331.0 * static_cast<double>(height);
    const Space spaces[] = {
        {Op::kIdentity},
        {Op::kShearX, 0, 0.3, true},
        {Op::kShearY, 0, 0.3, true},
        {Op::kTranslateX, 0, across, true},
        {Op::kTranslateY, 0, down, true},
        {Op::kRotate, 0, 30, true},
        {Op::kBrightness, 0, 0.9, true},
        {Op::kColor, 0, 0.9, true},
        {Op::kContrast, 0, 0.9, true},
        {Op::kSharpness, 0, 0.9, true},
        {Op::kPosterize, 8, 4},
        {Op::kSolarize, 255, 0},
        {Op::kAutoContrast},
        {Op::kEqualize},
    };
    std::vector<Operation> operations;
    for (int64_t layer = 0; layer < layers_; ++layer) {
      const Space& space = spaces[draws.below(std::ssize(spaces))];
      operations.push_back(operation_of(space, magnitude_, options_, draws));
    }
    return operations;
  }

 private:
  const int64_t layers_, magnitude_;
  const PolicyOptions options_;
};

constexpr Space kWide[] = {
    {Op::kIdentity},
    {Op::kShearX, 0, 0.99, true},
    {Op::kShearY, 0, 0.99, true},
    {Op::kTranslateX, 0, 32, true},
    {Op::kTranslateY, 0, 32, true},
    {Op::kRotate, 0, 135, true},
    {Op::kBrightness, 0, 0.99, true},
    {Op::kColor, 0, 0.99, true},
    {Op::kContrast, 0, 0.99, true},
    {Op::kSharpness, 0, 0.99, true},
    {Op::kPosterize, 8, 2},
    {Op::kSolarize, 255, 0},
    {Op::kAutoContrast},
    {Op::kEqualize},
};

/// One operation at a uniformly drawn bin.
class TrivialAugmentWide : public Policy {
 public:
  explicit TrivialAugmentWide(const PolicyOptions& options)
      : Policy(torchvision_style()), options_(options) {}

  std::vector<Operation> draw(Draws& draws, int64_t, int64_t) const override {
    const Space& space = kWide[draws.below(std::ssize(kWide))];
    const int64_t bin = draws.below(kBins);
    return {operation_of(space, bin, options_, draws)};
  }

 private:
  const PolicyOptions options_;
};

}  // namespace

PolicyPointer torchvision_rand_augment(int64_t layers, int64_t magnitude, const PolicyOptions& options) {
  return std::make_unique<TorchvisionRandAugment>(layers, magnitude, options);
}

PolicyPointer trivial_augment_wide(const PolicyOptions& options) {
  return std::make_unique<TrivialAugmentWide>(options);
}

}  // namespace tessera::data
