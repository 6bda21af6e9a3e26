// SPDX-License-Identifier: Apache-2.0
// Linear layers by a device's own products, with a table of such that LibTorch computes on the CPU.
#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "tessera/ops/cpu/cpu.h"
#include "tessera/ops/device/linear.h"
#include "tessera/ops/fp8_linear.h"
#include "tessera/ops/gelu_output.h"
#include "tessera/ops/layer_norm.h"
#include "tessera/ops/linear.h"
#include "tessera/ops/mlp.h"
#include "tests/ops/beside_formula.h"
#include "tests/ops/norm_then_linear.h"

namespace tessera::ops {
namespace {

struct Calls {
  int plain = 0, added = 0, gradients = 0, announced = 0;
};
Calls calls;

/// The scopes under way that ops announce, the innermost last: by these a product's time is counted.
std::vector<std::string> announced;

std::unique_ptr<at::ObserverContext> begin_scope(const at::RecordFunction& function) {
  announced.emplace_back(function.name());
  return nullptr;
}
void end_scope(const at::RecordFunction&, at::ObserverContext*) { announced.pop_back(); }

void expect_as_promised(std::initializer_list<at::Tensor> tensors) {
  for (const at::Tensor& t : tensors) {
    if (!t.defined()) continue;
    EXPECT_TRUE(t.is_contiguous());
    EXPECT_EQ(t.scalar_type(), at::kBFloat16);
    EXPECT_GT(t.numel(), 0);
  }
}

at::Tensor linear_there(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                        const at::Tensor& residual) {
  expect_as_promised({x, weight, bias, residual});
  EXPECT_EQ(x.dim(), 2);
  EXPECT_TRUE(announced.empty() || announced.back() == "tessera::linear");
  ++(residual.defined() ? calls.added : calls.plain);
  at::Tensor y = at::mm(x.to(at::kFloat), weight.to(at::kFloat).t()) + bias.to(at::kFloat);
  if (residual.defined()) {
    EXPECT_EQ(residual.sizes(), y.sizes());
    y += residual.to(at::kFloat);
  }
  return y.to(at::kBFloat16);
}

std::pair<at::Tensor, at::Tensor> gradients_there(const at::Tensor& gradient, const at::Tensor& x) {
  expect_as_promised({gradient, x});
  EXPECT_TRUE(announced.empty() || announced.back() == "tessera::linear_weight_gradient");
  ++calls.gradients;
  calls.announced += announced.empty() ? 0 : 1;
  const at::Tensor wide = gradient.to(at::kFloat);
  return {at::mm(wide.t(), x.to(at::kFloat)).to(at::kBFloat16), wide.sum(0).to(at::kBFloat16)};
}

at::Tensor weight_gradient_there(const at::Tensor& gradient, const at::Tensor& x) {
  return gradients_there(gradient, x).first;
}

const device::DeviceProducts kThere{
    .linear = linear_there, .parameter_gradients = gradients_there, .weight_gradient = weight_gradient_there};

/// The CPU has no kernels of ours, and these products in their place.
class DeviceLinear : public ::testing::Test {
 protected:
  DeviceLinear() {
    calls = {};
    device::register_products(&kThere, at::kCPU);
  }
  ~DeviceLinear() override {
    device::register_products(nullptr, at::kCPU);
    at::removeCallback(listening_);
    EXPECT_EQ(calls.announced, calls.gradients) << "a product of which nothing was said";
  }

 private:
  at::CallbackHandle listening_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(begin_scope, end_scope).scopes({at::RecordScope::USER_SCOPE}));
  WithoutKernels without_;
};

// Tensors: x, weight, bias, residual.
struct DeviceLayer {
  const char* name;
  std::function<at::Tensor(const Tensors&)> ours, formula;
  Calls expected;  // forward and backward
};

DeviceLayer of_plain() {
  return {"linear",
          [](const Tensors& t) { return linear(t[0], t[1], t[2]); },
          [](const Tensors& t) { return at::matmul(t[0], t[1].flatten(1).t()) + t[2]; },
          {1, 0, 1}};
}
DeviceLayer of_gelu() {
  return {"linear_gelu",
          [](const Tensors& t) { return linear_gelu(t[0], t[1], t[2]); },
          [](const Tensors& t) { return at::gelu(at::matmul(t[0], t[1].flatten(1).t()) + t[2]); },
          {1, 0, 1}};
}
DeviceLayer of_residual() {
  return {"linear_add",
          [](const Tensors& t) { return linear_add(t[0], t[1], t[2], t[3]); },
          [](const Tensors& t) { return t[3] + at::matmul(t[0], t[1].flatten(1).t()) + t[2]; },
          {0, 1, 1}};
}

// With a GELU before it, whose way back is part of the layer's.
DeviceLayer after_gelu() {
  return {"linear_add after gelu",
          [](const Tensors& t) { return linear_add(gelu_output(t[0]), t[1].flatten(1), t[2], t[3]); },
          [](const Tensors& t) { return t[3] + at::matmul(at::gelu(t[0]), t[1].flatten(1).t()) + t[2]; },
          {0, 1, 1}};
}

TEST_F(DeviceLinear, ValueAndGradientsAreAutograds) {
  const std::vector<std::vector<std::vector<int64_t>>> shapes = {
      {{64, 48}, {80, 48}, {80}, {64, 80}},
      {{3, 17, 33}, {50, 33}, {50}, {3, 17, 50}},
      {{2, 9, 48}, {40, 3, 4, 4}, {40}, {2, 9, 40}}};  // the last: a patch embedding's
  for (const DeviceLayer& layer : {of_plain(), of_gelu(), of_residual(), after_gelu()}) {
    for (const auto& sizes : shapes) {
      SCOPED_TRACE(layer.name);
      at::manual_seed(1);
      Tensors given, exact;
      for (const auto& shape : sizes)
        given.push_back((at::randn(shape) / 4).to(at::kBFloat16).requires_grad_());
      for (const at::Tensor& t : given) exact.push_back(t.detach().to(at::kDouble).requires_grad_());
      calls = {};
      const at::Tensor y = layer.ours(given), expected = layer.formula(exact);
      ASSERT_EQ(y.sizes(), expected.sizes());
      EXPECT_LT(error(y, expected), 0.01);
      const at::Tensor direction = at::randn(y.sizes()).to(at::kBFloat16);
      y.backward(direction);
      expected.backward(direction.to(at::kDouble));
      for (size_t i = 0; i < (layer.expected.added > 0 ? 4 : 3); ++i) {
        ASSERT_EQ(given[i].grad().sizes(), given[i].sizes()) << "input " << i;
        EXPECT_LT(error(given[i].grad(), exact[i].grad()), 0.01) << "input " << i;
      }
      EXPECT_EQ(calls.plain, layer.expected.plain);
      EXPECT_EQ(calls.added, layer.expected.added);
      EXPECT_EQ(calls.gradients, layer.expected.gradients);
    }
  }
}

TEST_F(DeviceLinear, AfterANormIsBitwiseTheTwoOps) {
  for (const bool gelu : {false, true}) {
    const auto together = [&](const Tensors& t) {
      const Norm norm{t[1], t[2], 1e-6};
      return gelu ? linear_gelu(normed(t[0], norm), t[3], t[4]) : linear(normed(t[0], norm), t[3], t[4]);
    };
    const auto apart = [&](const Tensors& t) {
      const at::Tensor normed = layer_norm(t[0], t[1], t[2], 1e-6);
      return gelu ? linear_gelu(normed, t[3], t[4]) : linear(normed, t[3], t[4]);
    };
    expect_the_same_bits(together, apart, {21, 33, 50}, at::kBFloat16);
  }
  EXPECT_GT(calls.gradients, 0);
}

// Its GELU's output is made again.
TEST_F(DeviceLinear, AnMlpIsBitwiseTheTwoLayersAndKeepsLess) {
  std::vector<Tensors> gradients;
  std::vector<int64_t> kept;
  for (const bool one : {true, false}) {
    const Tensors t = norm_then_linear_inputs({21, 33, 50}, at::kBFloat16);
    const at::Tensor fc2 = at::sin(at::arange(33 * 50)).view({33, 50}).to(at::kBFloat16).requires_grad_();
    const LiveBytes live;
    const LayerNormOutput x = normed(t[0], {t[1], t[2], 1e-6});
    const at::Tensor y =
        one ? mlp(x, t[3], t[4], fc2, t[2], t[0]) : linear_add(linear_gelu(x, t[3], t[4]), fc2, t[2], t[0]);
    kept.push_back(live.now());
    y.backward(at::ones_like(y));
    gradients.push_back({y.detach(), fc2.grad()});
    for (const at::Tensor& input : t) gradients.back().push_back(input.grad());
  }
  for (size_t i = 0; i < gradients[0].size(); ++i) {
    EXPECT_TRUE(at::equal(gradients[0][i], gradients[1][i])) << i;
  }
  EXPECT_EQ(kept[1] - kept[0], 3 * 21 * 50 * 2);
}

// And with both kept: the same bits, and the inputs of both layers more.
TEST_F(DeviceLinear, MlpThatKeepsItsInputsIsBitwiseTheSame) {
  std::vector<Tensors> gradients;
  std::vector<int64_t> kept;
  for (const bool keeps : {true, false}) {
    const Tensors t = norm_then_linear_inputs({21, 33, 50}, at::kBFloat16);
    const at::Tensor fc2 = at::sin(at::arange(33 * 50)).view({33, 50}).to(at::kBFloat16).requires_grad_();
    const LiveBytes live;
    const at::Tensor y = mlp(normed(t[0], {t[1], t[2], 1e-6}), t[3], t[4], fc2, t[2], t[0], keeps);
    kept.push_back(live.now());
    y.backward(at::ones_like(y));
    gradients.push_back({y.detach(), fc2.grad()});
    for (const at::Tensor& input : t) gradients.back().push_back(input.grad());
  }
  for (size_t i = 0; i < gradients[0].size(); ++i) {
    EXPECT_TRUE(at::equal(gradients[0][i], gradients[1][i])) << i;
  }
  EXPECT_EQ(kept[0] - kept[1], 3 * 21 * (33 + 50) * 2);
}

TEST_F(DeviceLinear, TakesWhatIsNotContiguous) {
  at::manual_seed(2);
  const at::Tensor x = at::randn({33, 64}).to(at::kBFloat16).t().requires_grad_();  // [64, 33]
  const at::Tensor weight = at::randn({33, 20}).to(at::kBFloat16).t(),
                   bias = at::randn({20}).to(at::kBFloat16);
  const at::Tensor y = linear(x, weight, bias);
  const at::Tensor exact =
      at::mm(x.detach().to(at::kDouble), weight.to(at::kDouble).t()) + bias.to(at::kDouble);
  EXPECT_LT(error(y, exact), 0.01);
  y.backward(at::ones({1}, at::kBFloat16).expand({64, 20}));
  EXPECT_LT(error(x.grad(), weight.to(at::kDouble).sum(0).expand({64, 33})), 0.01);
  EXPECT_EQ(calls.plain, 1);
}

TEST_F(DeviceLinear, WhatIsFrozenGetsNoGradient) {
  const at::Tensor x = at::randn({8, 16}).to(at::kBFloat16).requires_grad_();
  const at::Tensor weight = at::randn({4, 16}).to(at::kBFloat16);
  at::Tensor bias = at::randn({4}).to(at::kBFloat16);
  linear(x, weight, bias).sum().backward();
  EXPECT_EQ(calls.gradients, 0);
  EXPECT_TRUE(x.grad().defined());
  linear(x, weight, bias.requires_grad_()).sum().backward();
  EXPECT_EQ(calls.gradients, 0);
  EXPECT_TRUE(at::equal(bias.grad(), at::full({4}, 8, at::kBFloat16)));
}

// Whatever of the layer is frozen, the others' gradients are the same bits.
TEST_F(DeviceLinear, AfterGeluAnyGradientCanBeLeftOut) {
  at::manual_seed(4);
  const Tensors given = {at::randn({9, 16}).to(at::kBFloat16), at::randn({4, 16}).to(at::kBFloat16),
                         at::randn({4}).to(at::kBFloat16)};
  const auto gradients = [&](std::array<bool, 3> wanted) {
    Tensors t;
    for (size_t i = 0; i < 3; ++i) t.push_back(given[i].clone().requires_grad_(wanted[i]));
    linear(gelu_output(t[0]), t[1], t[2]).sum().backward();
    return Tensors{t[0].grad(), t[1].grad(), t[2].grad()};
  };
  const Tensors all = gradients({true, true, true});
  for (const std::array<bool, 3>& wanted : std::vector<std::array<bool, 3>>{
           {true, false, false}, {false, true, true}, {false, false, true}, {true, false, true}}) {
    const Tensors some = gradients(wanted);
    for (size_t i = 0; i < 3; ++i) {
      ASSERT_EQ(some[i].defined(), wanted[i]);
      if (wanted[i]) {
        EXPECT_TRUE(at::equal(some[i], all[i])) << i;
      }
    }
  }
}

// The weight's gradient of a linear layer in fp8 is a product in bf16, and the bias's comes with it.
TEST_F(DeviceLinear, Fp8sParametersAreDifferentiatedThere) {
  at::manual_seed(3);
  const auto values = [](at::IntArrayRef shape) {
    return at::randn(shape).to(at::kBFloat16).requires_grad_();
  };
  const at::Tensor x = values({3, 17, 33}), weight = values({50, 33}), bias = values({50});
  const at::Tensor y = fp8_linear(x, weight, bias), direction = at::randn(y.sizes()).to(at::kBFloat16);
  y.backward(direction);
  EXPECT_EQ(calls.gradients, 1);
  const at::Tensor wide = direction.to(at::kDouble).view({-1, 50});
  EXPECT_LT(error(weight.grad(), at::mm(wide.t(), x.detach().to(at::kDouble).view({-1, 33}))), 0.01);
  EXPECT_LT(error(bias.grad(), wide.sum(0)), 0.01);
}

// Other dtypes, other devices and layers of nothing are LibTorch's.
TEST_F(DeviceLinear, OthersAreNotAskedFor) {
  const auto run = [](at::TensorOptions options, int64_t rows) {
    return linear(at::zeros({rows, 16}, options), at::zeros({4, 16}, options), at::zeros({4}, options));
  };
  run(at::kFloat, 8);
  run(at::kBFloat16, 0);
  run(at::TensorOptions(at::kBFloat16).device(at::kMeta), 8);
  EXPECT_EQ(calls.plain, 0);
  run(at::kBFloat16, 8);
  EXPECT_EQ(calls.plain, 1);
  device::register_products(nullptr, at::kCPU);
  run(at::kBFloat16, 8);
  EXPECT_EQ(calls.plain, 1);
}

/// The table without what a comparison finds faulty, and the texts.
std::pair<device::DeviceProducts, std::vector<std::string>> judged(device::DeviceProducts products) {
  std::vector<std::string> faults = remove_faulty(products, at::kCPU);
  calls = {};  // a comparison is no operation, and announces nothing
  return {products, faults};
}

TEST_F(DeviceLinear, EachProductIsJudgedByItself) {
  EXPECT_EQ(judged(kThere).second, std::vector<std::string>());
  device::DeviceProducts faulty = kThere;
  faulty.linear = [](const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                     const at::Tensor&) { return linear_there(x, weight, bias, {}); };
  auto [kept, faults] = judged(faulty);
  ASSERT_EQ(faults.size(), 1U);
  EXPECT_TRUE(faults[0].starts_with("product 'linear with residual' differs from LibTorch: result off by "))
      << faults[0];
  EXPECT_TRUE(
      faults[0].ends_with(" of the largest value (tolerance 0.02); LibTorch's operations are used instead"))
      << faults[0];
  EXPECT_NE(kept.linear, nullptr);
  EXPECT_FALSE(kept.adds_residual);
  EXPECT_NE(kept.parameter_gradients, nullptr);
}

TEST_F(DeviceLinear, EveryFaultOfAProductIsNamed) {
  device::DeviceProducts faulty = kThere;
  faulty.parameter_gradients = [](const at::Tensor& gradient, const at::Tensor& x) {
    return std::pair(gradients_there(gradient, x).first + 1,
                     gradient.narrow(0, 1, gradient.size(0) - 1).sum(0));
  };
  auto [kept, faults] = judged(faulty);
  ASSERT_EQ(faults.size(), 1U);
  EXPECT_TRUE(faults[0].starts_with("product 'parameter gradients' differs from LibTorch: "));
  EXPECT_NE(faults[0].find("gradient of the weight off by "), std::string::npos) << faults[0];
  EXPECT_NE(faults[0].find(", gradient of the bias off by "), std::string::npos) << faults[0];
  EXPECT_EQ(kept.parameter_gradients, nullptr);
  EXPECT_NE(kept.linear, nullptr);
  faulty.parameter_gradients = [](const at::Tensor& gradient, const at::Tensor& x) {
    return gradients_there(x, gradient);
  };
  EXPECT_NE(judged(faulty).second.at(0).find("gradient of the weight of shape [64, 80] (expected [80, 64])"),
            std::string::npos);
  faulty.linear = [](const at::Tensor&, const at::Tensor&, const at::Tensor&,
                     const at::Tensor&) -> at::Tensor { throw std::runtime_error("no such library"); };
  std::tie(kept, faults) = judged(faulty);
  EXPECT_NE(kept.weight_gradient, nullptr);
  faulty.weight_gradient = [](const at::Tensor& gradient, const at::Tensor& x) {
    return weight_gradient_there(gradient, x) * 2;
  };
  std::tie(kept, faults) = judged(faulty);
  EXPECT_EQ(faults.size(), 4U);
  EXPECT_TRUE(faults.at(3).starts_with("product 'weight gradient' differs from LibTorch: ")) << faults.at(3);
  EXPECT_EQ(kept.weight_gradient, nullptr);
  EXPECT_EQ(faults.at(1), "product 'linear' failed: no such library; LibTorch's operations are used instead");
  EXPECT_EQ(kept.linear, nullptr);
}

// Values, gradients and what is called, with any of the products left to LibTorch.
TEST_F(DeviceLinear, MissingProductsAreLibTorchs) {
  device::DeviceProducts some = kThere;
  const auto run = [](const DeviceLayer& layer) {
    at::manual_seed(1);
    Tensors given, exact;
    for (const std::vector<int64_t>& shape : {std::vector<int64_t>{3, 17, 33}, {50, 33}, {50}, {3, 17, 50}})
      given.push_back((at::randn(shape) / 4).to(at::kBFloat16).requires_grad_());
    for (const at::Tensor& t : given) exact.push_back(t.detach().to(at::kDouble).requires_grad_());
    const at::Tensor y = layer.ours(given), expected = layer.formula(exact);
    const at::Tensor direction = at::randn(y.sizes()).to(at::kBFloat16);
    y.backward(direction);
    expected.backward(direction.to(at::kDouble));
    EXPECT_LT(error(y, expected), 0.01);
    for (size_t i = 0; i < given.size(); ++i) {
      if (!exact[i].grad().defined()) continue;
      EXPECT_LT(error(given[i].grad(), exact[i].grad()), 0.01) << i;
    }
  };
  some.adds_residual = false;
  device::register_products(&some, at::kCPU);  // which copies the table
  run(of_residual());
  EXPECT_EQ(calls.plain, 1);
  EXPECT_EQ(calls.added, 0);
  some.linear = nullptr;
  device::register_products(&some, at::kCPU);
  run(of_residual());
  run(of_gelu());
  EXPECT_EQ(calls.plain, 1);
  EXPECT_EQ(calls.gradients, 3);
  some.parameter_gradients = nullptr;
  device::register_products(&some, at::kCPU);
  run(of_residual());
  EXPECT_EQ(calls.gradients, 3);
}

}  // namespace
}  // namespace tessera::ops
