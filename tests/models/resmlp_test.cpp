// SPDX-License-Identifier: Apache-2.0
// ResMLP against timm 1.0.31: same weights and images, so the same logits, loss and gradients. The fixture is
// made by make_resmlp_fixture.py.
#include "tessera/models/resmlp.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <iostream>
#include <nlohmann/json.hpp>

#include "tests/models/formula.h"

namespace tessera::models {
namespace {

using nlohmann::json;

arch::ResMlpConfig resmlp_config_of(const json& description) {
  if (description.is_string()) return arch::resmlp_config(description.get<std::string>());
  arch::ResMlpConfig config;
  config.image_size = description["image_size"];
  config.patch_size = description["patch_size"];
  config.channels = description["channels"];
  config.width = description["width"];
  config.depth = description["depth"];
  config.mlp_width = description["mlp_width"];
  config.classes = description["classes"];
  return config;
}

class TimmParity : public testing::TestWithParam<const char*> {};

// In float64, as the fixture. Float32 is that but for rounding.
TEST_P(TimmParity, LogitsLossAndGradients) {
  const json& expected = formula::fixture("resmlp")["cases"][GetParam()];
  const int64_t batch = expected["batch"];
  ResMlp model(resmlp_config_of(expected["config"]));
  const auto images = formula::images("images", batch, model.config());
  formula::fill(model, at::kDouble);
  const at::Tensor logits = model.forward(images, {true, 1, {}});
  const at::Tensor wanted =
      at::tensor(expected["logits"].get<std::vector<double>>(), at::kDouble).view(logits.sizes());
  const double largest = wanted.abs().max().item<double>();
  EXPECT_GE(wanted.std().item<double>(), 0.1);
  EXPECT_LE((logits.to(at::kDouble) - wanted).abs().max().item<double>(), 1e-6 * largest);
  const at::Tensor loss = at::cross_entropy_loss(logits, formula::targets(batch, model.config().classes));
  EXPECT_NEAR(loss.item<double>(), expected["loss"].get<double>(), 1e-6);
  loss.backward();
  double worst = 0;
  const auto parameters = model.named_parameters();
  ASSERT_EQ(parameters.size(), expected["gradients"].size());
  for (const auto& item : parameters) {
    ASSERT_TRUE(expected["gradients"].contains(item.key())) << item.key();
    const json& gradient = expected["gradients"][item.key()];
    ASSERT_EQ(item.value().sizes().vec(), gradient["shape"].get<std::vector<int64_t>>()) << item.key();
    const double error = formula::tensor_error(item.key(), item.value().grad(), gradient);
    EXPECT_LE(error, 1e-5) << item.key();
    worst = std::max(worst, error);
  }
  std::cout << GetParam() << ": logits up to " << largest << ", the gradients' worst error " << worst << "\n";
  const at::NoGradGuard no_grad;
  formula::fill(model);
  const at::Tensor single = model.forward(images, {});
  EXPECT_LE((single.to(at::kDouble) - wanted).abs().max().item<double>(), 1e-5 * largest);
}

INSTANTIATE_TEST_SUITE_P(ResMlp, TimmParity, testing::Values("resmlp_12_224", "small", "gray"),
                         [](const auto& info) { return std::string(info.param); });

TEST(ResMlpModel, FeaturesAreTimmsPreLogits) {
  const json& fixture = formula::fixture("resmlp");
  ResMlp model(resmlp_config_of(fixture["cases"]["small"]["config"]));
  formula::fill(model);
  at::Tensor features, tokens;
  ForwardContext context;
  context.observe = [&](const std::string& what, const at::Tensor& value) {
    if (what == "features") features = value.to(at::kDouble);
    if (what == "tokens") tokens = value.to(at::kDouble);
  };
  const at::NoGradGuard no_grad;
  model.forward(formula::images("images", 2, model.config()), context);
  ASSERT_TRUE(features.defined() && tokens.defined());
  const at::Tensor wanted =
      at::tensor(fixture["features"]["small"].get<std::vector<double>>(), at::kDouble).view({2, -1});
  EXPECT_TRUE(features.allclose(wanted, 1e-5, 1e-5)) << (features - wanted).abs().max();
  EXPECT_TRUE(tokens.mean(1).allclose(wanted, 1e-5, 1e-5));
}

// The network of recipes/resmlp_24.toml and resmlp_24_bits.toml.
TEST(ResMlpModel, TheShippedSizeHasTimmsLogits) {
  const json& expected = formula::fixture("resmlp")["logits"].at(0);
  ASSERT_EQ(expected["config"], "resmlp_24_224");
  ResMlp model(resmlp_config_of(expected["config"]));
  const auto images = formula::images("images", expected["batch"], model.config());
  formula::fill(model);
  const at::NoGradGuard no_grad;
  const at::Tensor logits = model.forward(images, {}).to(at::kDouble);
  const at::Tensor wanted =
      at::tensor(expected["logits"].get<std::vector<double>>(), at::kDouble).view(logits.sizes());
  EXPECT_GE(wanted.std().item<double>(), 0.1);
  EXPECT_LE((logits - wanted).abs().max().item<double>(), 1e-5 * wanted.abs().max().item<double>());
}

// A branch that is dropped leaves the tokens as they were, and which one is depends on the sample alone.
TEST(ResMlpModel, DropPathDependsOnTheSample) {
  arch::ResMlpConfig config;
  config.image_size = 8;
  config.patch_size = 4;
  config.width = 8;
  config.mlp_width = 16;
  config.depth = 3;
  config.classes = 5;
  config.drop_path = 0.5;
  ResMlp model(config);
  formula::fill(model);
  const at::NoGradGuard no_grad;
  const at::Tensor images = formula::images("images", 4, config);
  const at::Tensor all = model.forward(images, {true, 3, {7, 8, 9, 10}});
  const at::Tensor two = model.forward(images.slice(0, 2, 4), {true, 3, {9, 10}});
  EXPECT_TRUE(all.slice(0, 2, 4).allclose(two, 1e-5, 1e-6));
  EXPECT_FALSE(all.allclose(model.forward(images, {}), 1e-3, 1e-3));
  EXPECT_FALSE(all.allclose(model.forward(images, {true, 4, {7, 8, 9, 10}}), 1e-3, 1e-3));
}

}  // namespace
}  // namespace tessera::models
