// SPDX-License-Identifier: Apache-2.0
// The last block computes what the head reads (Note [Tokens that are read]): as if it had computed every
// token.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <string>

#include "tessera/models/vit.h"
#include "tests/models/formula.h"

namespace tessera::models {
namespace {

struct Case {
  std::string name;
  std::function<void(arch::VitConfig&)> change;
  int64_t read;
  at::ScalarType dtype = at::kDouble;
  bool fp8 = false;
};

class ReadTokens : public testing::TestWithParam<Case> {};

struct Result {
  at::Tensor logits;
  std::map<std::string, at::Tensor> gradients;
};

Result step(VisionTransformer& model, const at::Tensor& images, const ForwardContext& context) {
  for (const auto& parameter : model.parameters()) parameter.mutable_grad() = at::Tensor();
  Result result{model.forward(images, context), {}};
  at::cos(result.logits.to(at::kDouble)).sum().backward();
  for (const auto& parameter : model.named_parameters()) {
    if (parameter.value().requires_grad())
      result.gradients[parameter.key()] = parameter.value().grad().clone();
  }
  return result;
}

double error(const at::Tensor& is, const at::Tensor& expected) {
  const at::Tensor wide = expected.to(at::kDouble);
  const double largest = wide.abs().max().item<double>();
  return (is.to(at::kDouble) - wide).abs().max().item<double>() / (largest > 1e-6 ? largest : 1);
}

TEST_P(ReadTokens, TheSameLogitsAndGradientsAsOfEveryToken) {
  const Case& given = GetParam();
  arch::VitConfig config = formula::small_vit();
  given.change(config);
  VisionTransformer model(config);
  formula::fill(model, given.dtype);
  const at::Tensor images = formula::images("images", 3, config).to(given.dtype);
  ForwardContext context{true, 5, {7, 8, 9}};
  context.fp8 = given.fp8;
  const Result read = step(model, images, context);
  context.every_token = true;
  const Result all = step(model, images, context);

  const double tolerance = given.dtype == at::kDouble ? 1e-12 : given.dtype == at::kFloat ? 1e-5 : 0.03;
  EXPECT_LT(error(read.logits, all.logits), tolerance);
  ASSERT_EQ(read.gradients.size(), all.gradients.size());
  for (const auto& [name, gradient] : all.gradients) {
    EXPECT_LT(error(read.gradients.at(name), gradient), tolerance) << name;
  }
}

TEST_P(ReadTokens, WhoLooksChangesNothing) {
  arch::VitConfig config = formula::small_vit();
  GetParam().change(config);
  VisionTransformer model(config);
  formula::fill(model);
  const at::Tensor images = formula::images("images", 3, config);
  std::map<std::string, int64_t> tokens;
  ForwardContext context{true, 5, {7, 8, 9}};
  const Result alone = step(model, images, context);
  context.observe = [&](const std::string& name, const at::Tensor& value) {
    if (value.dim() == 3) tokens[name] = value.size(1);
  };
  const Result seen = step(model, images, context);
  EXPECT_EQ(tokens.at("blocks.1"), config.tokens());
  EXPECT_EQ(tokens.at("blocks.2"), GetParam().read);
  EXPECT_TRUE(seen.logits.equal(alone.logits));
  for (const auto& [name, gradient] : alone.gradients) {
    EXPECT_TRUE(seen.gradients.at(name).equal(gradient)) << name;
  }
}

TEST_P(ReadTokens, TheLastBlockMakesNoOthers) {
  arch::VitConfig config = formula::small_vit();
  GetParam().change(config);
  VisionTransformer model(config);
  formula::fill(model);
  const at::Tensor x = formula::uniform("tokens", 2 * config.tokens() * 32).view({2, config.tokens(), 32});
  const auto tokens_of = [&](size_t block) {
    return model.segments()[1 + block].forward(x, {false, 1, {1, 2}}).size(1);
  };
  EXPECT_EQ(tokens_of(1), config.tokens());
  EXPECT_EQ(tokens_of(2), GetParam().read);
}

// Frozen are those whose names begin so, and where `others` says it, all others but the head.
struct Frozen {
  std::string name, prefix;
  bool others = false;
};

class ReadTokensFrozen : public testing::TestWithParam<Frozen> {};

TEST_P(ReadTokensFrozen, TheGradientsThatAreLeftAreTheSame) {
  VisionTransformer model(formula::small_vit());
  formula::fill(model, at::kDouble);
  for (const auto& parameter : model.named_parameters()) {
    const bool named = parameter.key().starts_with(GetParam().prefix);
    const bool head = parameter.key().starts_with("head.");
    parameter.value().requires_grad_(head || named == GetParam().others);
  }
  const at::Tensor images = formula::images("images", 3, formula::small_vit()).to(at::kDouble);
  ForwardContext context{true, 5, {7, 8, 9}};
  const Result read = step(model, images, context);
  context.every_token = true;
  const Result all = step(model, images, context);
  EXPECT_LT(error(read.logits, all.logits), 1e-12);
  ASSERT_EQ(read.gradients.size(), all.gradients.size());
  for (const auto& [name, gradient] : all.gradients) {
    EXPECT_LT(error(read.gradients.at(name), gradient), 1e-12) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Options, ReadTokensFrozen,
                         testing::Values(Frozen{"qkv", "blocks.2.attn.qkv"},
                                         Frozen{"weight", "blocks.2.attn.qkv.weight"},
                                         Frozen{"bias", "blocks.2.attn.qkv.bias"},
                                         Frozen{"norm", "blocks.2.norm1"},
                                         Frozen{"all_but_qkv", "blocks.2.attn.qkv", true},
                                         Frozen{"all_but_the_block", "blocks.2.", true},
                                         Frozen{"all_but_the_stem", "patch_embed", true}),
                         [](const testing::TestParamInfo<Frozen>& info) { return info.param.name; });

// It moves all scores of a query alike: the optimizer is told so, not left without a gradient.
TEST(ReadTokensOf, TheLastKeysBiasHasAGradientOfZeros) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    VisionTransformer model(formula::small_vit());
    formula::fill(model, dtype);
    const at::Tensor images = formula::images("images", 3, formula::small_vit()).to(dtype);
    const at::Tensor bias = step(model, images, {true, 5, {7, 8, 9}}).gradients.at("blocks.2.attn.qkv.bias");
    EXPECT_TRUE(bias.narrow(0, 32, 32).eq(0).all().item<bool>());
    EXPECT_GT(bias.narrow(0, 0, 32).abs().max().item<double>(), 0);
    EXPECT_GT(bias.narrow(0, 64, 32).abs().max().item<double>(), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Options, ReadTokens,
    testing::Values(
        Case{"plain", [](arch::VitConfig&) {}, 1}, Case{"fp32", [](arch::VitConfig&) {}, 1, at::kFloat},
        Case{"bf16", [](arch::VitConfig&) {}, 1, at::kBFloat16},
        Case{"fp8", [](arch::VitConfig&) {}, 1, at::kBFloat16, true},
        Case{"registers", [](arch::VitConfig& c) { c.registers = 2; }, 1},
        Case{"distillation", [](arch::VitConfig& c) { c.distillation_token = true; }, 2},
        Case{"distillation_fp32", [](arch::VitConfig& c) { c.distillation_token = true; }, 2, at::kFloat},
        Case{"distillation_bf16", [](arch::VitConfig& c) { c.distillation_token = true; }, 2, at::kBFloat16},
        Case{"qk_norm", [](arch::VitConfig& c) { c.qk_norm = true; }, 1},
        Case{"qk_norm_fp32", [](arch::VitConfig& c) { c.qk_norm = true; }, 1, at::kFloat},
        Case{"layer_scale", [](arch::VitConfig& c) { c.layer_scale = 0.5; }, 1},
        Case{"drop_path", [](arch::VitConfig& c) { c.drop_path = 0.6; }, 1},
        Case{"dropout", [](arch::VitConfig& c) { c.dropout = 0.3; }, 1},
        Case{"average", [](arch::VitConfig& c) { c.pool = arch::Pool::kAverage; }, 17},
        Case{"attention_pool", [](arch::VitConfig& c) { c.pool = arch::Pool::kAttention; }, 17}),
    [](const testing::TestParamInfo<Case>& info) { return info.param.name; });

}  // namespace
}  // namespace tessera::models
