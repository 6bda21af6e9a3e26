// SPDX-License-Identifier: Apache-2.0
// Dropout and drop-path in the model: the same for a sample wherever and whenever it is computed.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>

#include "tessera/models/vit.h"
#include "tessera/ops/cpu/cpu.h"
#include "tests/models/formula.h"

namespace tessera::models {
namespace {

arch::VitConfig config_with(double drop_path, double dropout) {
  arch::VitConfig config = formula::small_vit();
  config.registers = 1;
  config.drop_path = drop_path;
  config.dropout = dropout;
  return config;
}

struct Rates {
  double drop_path, dropout;
};

class Random : public testing::TestWithParam<Rates> {
 protected:
  Random() : model_(config_with(GetParam().drop_path, GetParam().dropout)) {
    formula::fill(model_);
    images_ = formula::images("images", 6, model_.config());
  }
  VisionTransformer model_;
  at::Tensor images_;
};

TEST_P(Random, SameNumbersForASampleInAnyBatch) {
  const at::Tensor whole = model_.forward(images_, {true, 7, {10, 11, 12, 13, 14, 15}});
  const at::Tensor back = model_.forward(images_.flip(0), {true, 7, {15, 14, 13, 12, 11, 10}}).flip(0);
  const at::Tensor half = model_.forward(images_.narrow(0, 2, 3), {true, 7, {12, 13, 14}});
  EXPECT_LT((whole - back).abs().max().item<double>(), 1e-5);
  EXPECT_LT((whole.narrow(0, 2, 3) - half).abs().max().item<double>(), 1e-5);
}

// The bf16 kernels treat every sample alike, so there it is the same bit for bit.
TEST_P(Random, InBf16ASampleIsBitwiseTheSameInAnyBatch) {
  if (!ops::cpu_has_bf16_kernels()) {
    GTEST_SKIP() << "no bf16 kernels for this CPU";
  }
  formula::fill(model_, at::kBFloat16);
  const at::Tensor whole = model_.forward(images_, {true, 7, {10, 11, 12, 13, 14, 15}});
  EXPECT_TRUE(
      at::equal(whole.narrow(0, 2, 3), model_.forward(images_.narrow(0, 2, 3), {true, 7, {12, 13, 14}})));
  EXPECT_TRUE(at::equal(whole.flip(0), model_.forward(images_.flip(0), {true, 7, {15, 14, 13, 12, 11, 10}})));
}

// LayerScale is a diagonal matrix after the last linear layer of a branch, whether or not drop-path is
// active: a model without it whose weights are scaled by gamma makes the same numbers.
TEST_P(Random, LayerScaleIsThatOfScaledWeights) {
  arch::VitConfig config = model_.config();
  config.layer_scale = 0.1;
  VisionTransformer scaled(config);
  formula::fill(scaled);
  std::map<std::string, at::Tensor> given;
  for (const Segment& segment : scaled.segments()) {
    for (const auto& [name, parameter] : segment.parameters) given[name] = parameter.detach();
  }
  const at::NoGradGuard no_gradients;
  for (auto& [name, gamma] : given) {
    if (name.ends_with("gamma")) gamma.copy_(at::linspace(-1.5, 2, gamma.numel()));
  }
  int folded = 0;
  for (const Segment& segment : model_.segments()) {
    for (const auto& [name, parameter] : segment.parameters) {
      const std::string block = name.substr(0, name.find('.', name.find('.') + 1) + 1);  // "blocks.1."
      at::Tensor value = given.at(name);
      for (const auto& [layer, scale] :
           {std::pair("attn.proj.", "ls1.gamma"), std::pair("mlp.fc2.", "ls2.gamma")}) {
        if (!name.starts_with(block + layer)) continue;
        const at::Tensor& gamma = given.at(block + scale);
        value = value.dim() == 2 ? value * gamma.unsqueeze(1) : value * gamma;
        ++folded;
      }
      parameter.copy_(value);
    }
  }
  EXPECT_EQ(folded, 4 * config.depth);
  for (const bool training : {true, false}) {
    const ForwardContext context{training, 7, {10, 11, 12, 13, 14, 15}};
    const at::Tensor expected = model_.forward(images_, context), found = scaled.forward(images_, context);
    EXPECT_LT((found - expected).abs().max().item<double>(), 1e-5 * expected.abs().max().item<double>())
        << (training ? "training" : "evaluation");
  }
}

TEST_P(Random, RepeatsBitwiseAndDependsOnKeyAndSample) {
  const ForwardContext context{true, 7, {0, 1, 2, 3, 4, 5}};
  const at::Tensor first = model_.forward(images_, context);
  EXPECT_TRUE(at::equal(first, model_.forward(images_, context)));
  EXPECT_FALSE(at::equal(first, model_.forward(images_, {true, 8, context.samples})));
  EXPECT_FALSE(at::equal(first, model_.forward(images_, {true, 7, {6, 7, 8, 9, 10, 11}})));
}

TEST_P(Random, IsOffInEvaluation) {
  VisionTransformer plain(config_with(0.0, 0.0));
  formula::fill(plain);
  EXPECT_TRUE(at::equal(plain.forward(images_, {}), model_.forward(images_, {false, 7, {}})));
}

TEST_P(Random, RecomputedSegmentsGiveTheSameGradients) {
  const ForwardContext context{true, 7, {0, 1, 2, 3, 4, 5}};
  model_.forward(images_, context).square().sum().backward();
  std::vector<at::Tensor> expected;
  for (auto& parameter : model_.parameters()) {
    expected.push_back(parameter.grad().clone());
    parameter.mutable_grad() = at::Tensor();
  }
  // Forward without a graph, then each segment again with one, last to first.
  std::vector<at::Tensor> inputs = {images_};
  {
    const at::NoGradGuard no_grad;
    for (const auto& segment : model_.segments()) {
      inputs.push_back(segment.forward(inputs.back(), context));
    }
  }
  at::Tensor gradient = 2 * inputs.back();
  for (size_t i = model_.segments().size(); i-- > 0;) {
    const at::Tensor input = inputs[i].detach().requires_grad_(i > 0);
    model_.segments()[i].forward(input, context).backward(gradient);
    gradient = input.grad();
  }
  const auto parameters = model_.parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    EXPECT_TRUE(at::equal(parameters[i].grad(), expected[i])) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Random, testing::Values(Rates{0.5, 0.0}, Rates{0.0, 0.3}, Rates{0.3, 0.1}));

// A sample whose every branch is dropped passes the blocks unchanged; earlier blocks drop less.
TEST(DropPath, GrowsOverTheBlocksAndDropsWholeSamples) {
  VisionTransformer model(config_with(0.9, 0.0));
  formula::fill(model);
  const int64_t batch = 400;
  ForwardContext context{true, 3, {}};
  for (int64_t i = 0; i < batch; ++i) {
    context.samples.push_back(static_cast<uint64_t>(i));
  }
  const at::NoGradGuard no_grad;
  const at::Tensor x = formula::uniform("tokens", batch * 18 * 32).view({batch, 18, 32});
  const double expected[] = {0.0, 0.45 * 0.45, 0.9 * 0.9};  // attention and MLP branch both dropped
  for (size_t block = 0; block < 3; ++block) {
    const at::Tensor y = model.segments()[1 + block].forward(x, context);
    const double share =
        (y == x.narrow(1, 0, y.size(1))).flatten(1).all(1).to(at::kDouble).mean().item<double>();
    EXPECT_NEAR(share, expected[block], 0.08) << block;
  }
}

}  // namespace
}  // namespace tessera::models
