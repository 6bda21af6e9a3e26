// SPDX-License-Identifier: Apache-2.0
// Against timm 1.0.31: same weights and images, so the same logits, losses, gradients and training curve. The
// fixture is made by make_parity_fixture.py.
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>

#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>

#include "tessera/formats/safetensors.h"
#include "tessera/models/vit.h"
#include "tests/models/formula.h"

namespace tessera::models {
namespace {

using nlohmann::json;

ForwardContext training_context(int64_t batch) {
  ForwardContext context{true, 1, {}};
  for (int64_t i = 0; i < batch; ++i) {
    context.samples.push_back(static_cast<uint64_t>(i));
  }
  return context;
}

/// Every gradient of every case, where check_parity_fixture.sh has had them made.
const formats::SafetensorsReader* whole_gradients() {
  static const char* path = std::getenv("TESSERA_PARITY_GRADIENTS");
  static const auto reader = path == nullptr ? nullptr : std::make_unique<formats::SafetensorsReader>(path);
  return reader.get();
}

/// max|a - b| / max|b| of a whole tensor; of one that is zero but for rounding, max|a - b|.
double whole_gradient_error(const formats::SafetensorsReader& gradients, const std::string& name,
                            const at::Tensor& gradient) {
  const auto* entry = gradients.find(name);
  if (entry == nullptr) throw std::runtime_error("no gradient " + name);
  at::Tensor expected = at::empty(entry->shape);
  gradients.read(*entry, 0, {static_cast<std::byte*>(expected.data_ptr()), expected.nbytes()});
  const double largest = expected.abs().max().item<double>();
  return (gradient - expected).abs().max().item<double>() / (largest < 1e-12 ? 1.0 : largest);
}

class Parity : public testing::TestWithParam<const char*> {};

TEST_P(Parity, LogitsLossAndGradientsAreTimms) {
  const json& expected = formula::fixture("parity")["cases"][GetParam()];
  const int64_t batch = expected["batch"];
  VisionTransformer model(formula::vit_config_of(expected["config"]));
  formula::fill(model);
  at::Tensor logits =
      model.forward(formula::images("images", batch, model.config()), training_context(batch));
  if (model.config().distillation_token) {
    ASSERT_EQ(logits.size(1), 2 * model.config().classes) << "those of both heads";
    const auto heads = logits.chunk(2, 1);
    logits = (heads[0] + heads[1]) / 2;  // what timm gives but for distilled training
    const torch::NoGradGuard no_grad;
    const at::Tensor evaluated = model.forward(formula::images("images", batch, model.config()), {});
    EXPECT_TRUE(evaluated.allclose(logits, 1e-6, 1e-6));
  }
  const at::Tensor expected_logits =
      torch::tensor(expected["logits"].get<std::vector<double>>(), torch::kDouble).view(logits.sizes());
  EXPECT_GE(logits.std().item<double>(), 0.5);
  const double logits_error = (logits.to(torch::kDouble) - expected_logits).abs().max().item<double>();
  EXPECT_LE(logits_error, 1e-5);
  const at::Tensor loss = torch::cross_entropy_loss(logits, formula::targets(batch, model.config().classes));
  EXPECT_NEAR(loss.item<double>(), expected["loss"].get<double>(), 1e-5);
  loss.backward();

  const auto parameters = model.named_parameters();
  ASSERT_EQ(parameters.size(), expected["gradients"].size());
  double worst = 0.0;
  for (const auto& item : parameters) {
    ASSERT_TRUE(expected["gradients"].contains(item.key())) << item.key();
    const json& gradient = expected["gradients"][item.key()];
    ASSERT_EQ(item.value().sizes().vec(), gradient["shape"].get<std::vector<int64_t>>()) << item.key();
    double error = formula::tensor_error(item.key(), item.value().grad(), gradient);
    if (const auto* whole = whole_gradients()) {
      const std::string name = std::string(GetParam()) + "/" + item.key();
      error = std::max(error, whole_gradient_error(*whole, name, item.value().grad()));
    }
    EXPECT_LE(error, 1e-4) << item.key();
    worst = std::max(worst, error);
  }
  std::cout << GetParam() << ": logits' std " << logits.std().item<double>() << ", their error "
            << logits_error << ", the gradients' worst " << worst << "\n";
}

INSTANTIATE_TEST_SUITE_P(Timm, Parity,
                         testing::Values("vit_tiny_patch16_224", "gap_no_class_token",
                                         "registers_layer_scale", "registers_gap_qk_norm", "attention_pool",
                                         "distilled", "gap_norm_before_pool", "tanh_head_gray_large_epsilon"),
                         [](const auto& info) { return std::string(info.param); });

// LibTorch's own AdamW and clipping: what is tested is that our model learns as PyTorch's does.
TEST(Parity, TwentyAdamWStepsGivePyTorchsLossCurve) {
  const json& expected = formula::fixture("parity")["training"];
  const json& recipe = expected["recipe"];
  VisionTransformer model(formula::vit_config_of(expected["config"]));
  formula::fill(model);
  std::vector<at::Tensor> decay, rest, all;
  const auto parameters = model.named_parameters();
  for (const auto& spec : arch::parameters(model.config())) {
    (spec.decay ? decay : rest).push_back(parameters[spec.name]);
    all.push_back(parameters[spec.name]);
  }
  using Options = torch::optim::AdamWOptions;
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(decay, std::make_unique<Options>(Options().weight_decay(recipe["weight_decay"])));
  groups.emplace_back(rest, std::make_unique<Options>(Options().weight_decay(0.0)));
  torch::optim::AdamW optimizer(groups, Options());
  const auto losses = expected["losses"].get<std::vector<double>>();
  const auto norms = expected["gradient_norms"].get<std::vector<double>>();
  const int64_t batch = recipe["batch"];
  for (int64_t step = 0; step < recipe["steps"].get<int64_t>(); ++step) {
    const double warmup = std::min(1.0, static_cast<double>(step + 1) / recipe["warmup"].get<double>());
    for (auto& group : optimizer.param_groups()) {
      static_cast<Options&>(group.options()).lr(recipe["lr"].get<double>() * warmup);
    }
    const int64_t number = step % recipe["batches"].get<int64_t>();
    const at::Tensor logits = model.forward(
        formula::images("images/" + std::to_string(number), batch, model.config()), training_context(batch));
    const at::Tensor loss =
        torch::cross_entropy_loss(logits, formula::targets(batch, model.config().classes, number));
    optimizer.zero_grad();
    loss.backward();
    const double norm = torch::nn::utils::clip_grad_norm_(all, recipe["clip"].get<double>());
    optimizer.step();
    EXPECT_NEAR(loss.item<double>(), losses[step], 1e-4) << "step " << step;
    EXPECT_NEAR(norm, norms[step], 1e-3 * norms[step]) << "step " << step;
  }
  EXPECT_LT(losses.back(), 0.1 * losses.front()) << "the curve should be that of a model that learns";
}

}  // namespace
}  // namespace tessera::models
