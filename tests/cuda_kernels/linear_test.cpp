// SPDX-License-Identifier: Apache-2.0
// Linear layers of a device with kernels and products: which passes their backward makes.
#include "tessera/ops/linear.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>

#include "tessera/ops/attention.h"
#include "tessera/ops/device/linear.h"
#include "tessera/ops/mlp.h"
#include "tests/cuda_kernels/table.h"
#include "tests/ops/beside_formula.h"

namespace tessera::ops {
namespace {

struct Calls {
  int with_sums = 0, alone = 0;  // gradients of a weight
};
Calls calls;

at::Tensor weight_gradient(const at::Tensor& gradient, const at::Tensor& x) {
  EXPECT_TRUE(gradient.is_contiguous() && x.is_contiguous());
  ++calls.alone;
  return at::mm(gradient.t(), x);
}

const device::DeviceProducts kProducts{.parameter_gradients =
                                           [](const at::Tensor& gradient, const at::Tensor& x) {
                                             ++calls.with_sums;
                                             return std::pair(at::mm(gradient.t(), x), gradient.sum(0));
                                           },
                                       .weight_gradient = weight_gradient};

/// The CPU has the plug-in's kernels, and these products.
class DeviceLayers : public ::testing::Test {
 protected:
  DeviceLayers() {
    calls = {};
    device::register_products(&kProducts, at::kCPU);
  }
  ~DeviceLayers() override { device::register_products(nullptr, at::kCPU); }

 private:
  cuda::UsingKernels kernels_;
};

using Op = std::function<at::Tensor(const Tensors&)>;

/// Value and gradients of `ours` in bf16 beside those of `formula` in float64.
void expect_formula(const std::vector<std::vector<int64_t>>& shapes, const Op& ours, const Op& formula) {
  at::manual_seed(1);
  Tensors given, exact;
  for (const auto& shape : shapes) {
    given.push_back((at::randn(shape) / 2).to(at::kBFloat16).requires_grad_());
    exact.push_back(given.back().detach().to(at::kDouble).requires_grad_());
  }
  const at::Tensor y = ours(given), expected = formula(exact);
  const at::Tensor direction = at::randn(y.sizes()).to(at::kBFloat16);
  y.backward(direction);
  expected.backward(direction.to(at::kDouble));
  EXPECT_LT(error(y, expected), 0.01);
  for (size_t i = 0; i < given.size(); ++i) EXPECT_LT(error(given[i].grad(), exact[i].grad()), 0.02) << i;
}

at::Tensor exact_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  return at::matmul(x, weight.t()) + bias;
}

TEST_F(DeviceLayers, BiasGradientComesWithTheGelusGradient) {
  expect_formula(
      {{5, 13, 32}, {72, 32}, {72}}, [](const Tensors& t) { return linear_gelu(t[0], t[1], t[2]); },
      [](const Tensors& t) { return at::gelu(exact_linear(t[0], t[1], t[2])); });
  EXPECT_EQ(calls.alone, 1);
  EXPECT_EQ(calls.with_sums, 0);
}

TEST_F(DeviceLayers, KeptActivationsSpareThePassForTheBias) {
  for (const bool keeps : {false, true}) {
    calls = {};
    expect_formula(
        {{5, 13, 32}, {32}, {32}, {72, 32}, {72}, {32, 72}, {32}},
        [&](const Tensors& t) {
          return mlp(normed(t[0], {t[1], t[2], 1e-6}), t[3], t[4], t[5], t[6], t[0], keeps);
        },
        [](const Tensors& t) {
          const at::Tensor x = at::layer_norm(t[0], {32}, t[1], t[2], 1e-6);
          return t[0] + exact_linear(at::gelu(exact_linear(x, t[3], t[4])), t[5], t[6]);
        });
    EXPECT_EQ(calls.alone, keeps ? 1 : 0);
    EXPECT_EQ(calls.with_sums, keeps ? 1 : 2);
  }
}

// The projection of q, k and v: with and without the norm's rows kept, frozen parts, unused parts.
TEST_F(DeviceLayers, BiasGradientComesWithTheGradientsOfQueriesKeysAndValues) {
  for (const bool keeps : {false, true}) {
    calls = {};
    expect_formula(
        {{3, 13, 32}, {32}, {32}, {96, 32}, {96}},
        [&](const Tensors& t) {
          return self_attention(normed(t[0], {t[1], t[2], 1e-6}), t[3], t[4], 4, keeps);
        },
        [](const Tensors& t) {
          const at::Tensor x = at::layer_norm(t[0], {32}, t[1], t[2], 1e-6);
          return self_attention(exact_linear(x, t[3], t[4]), 4);
        });
    EXPECT_EQ(calls.alone, 1);
    EXPECT_EQ(calls.with_sums, 0);
  }
}

TEST_F(DeviceLayers, UnusedPartsGetZeroGradients) {
  expect_formula(
      {{7, 16}, {48, 16}, {48}}, [](const Tensors& t) { return device_linear_parts(t[0], t[1], t[2])[1]; },
      [](const Tensors& t) { return exact_linear(t[0], t[1], t[2]).narrow(1, 16, 16); });
}

TEST_F(DeviceLayers, PartsOfAFrozenWeight) {
  const at::Tensor x = at::randn({9, 16}).to(at::kBFloat16).requires_grad_();
  const at::Tensor weight = at::randn({48, 16}).to(at::kBFloat16), bias = at::zeros({48}, at::kBFloat16);
  const auto parts = device_linear_parts(x, weight, bias);
  (parts[0] + parts[1] + parts[2]).sum().backward();
  EXPECT_LT(error(x.grad()[0], weight.to(at::kDouble).sum(0)), 0.02);
  EXPECT_FALSE(weight.grad().defined());
  EXPECT_EQ(calls.alone + calls.with_sums, 0);
}

TEST_F(DeviceLayers, AFrozenWeightStillGivesTheBiasGradient) {
  const at::Tensor x = at::randn({9, 16}).to(at::kBFloat16), weight = at::randn({24, 16}).to(at::kBFloat16);
  const at::Tensor bias = at::randn({24}).to(at::kBFloat16).requires_grad_();
  linear_gelu(x, weight, bias).sum().backward();
  const at::Tensor exact = bias.detach().to(at::kDouble).requires_grad_();
  at::gelu(exact_linear(x.to(at::kDouble), weight.to(at::kDouble), exact)).sum().backward();
  EXPECT_LT(error(bias.grad(), exact.grad()), 0.02);
  EXPECT_EQ(calls.alone + calls.with_sums, 0);
}

}  // namespace
}  // namespace tessera::ops
