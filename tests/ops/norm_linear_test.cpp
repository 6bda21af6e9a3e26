// SPDX-License-Identifier: Apache-2.0
// A norm and the linear layer after it, where what the norm makes is made again for backward.
// device_linear_test.cpp and fp8_linear_test.cpp have the same for their layers.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>

#include <vector>

#include "tessera/ops/cpu/cpu.h"
#include "tessera/ops/layer_norm.h"
#include "tessera/ops/linear.h"
#include "tests/ops/beside_formula.h"
#include "tests/ops/norm_then_linear.h"

namespace tessera::ops {
namespace {

at::Tensor together(const Tensors& t, bool gelu) {
  const LayerNormOutput x = normed(t[0], {t[1], t[2], kEpsilon});
  return gelu ? linear_gelu(x, t[3], t[4]) : linear(x, t[3], t[4]);
}

at::Tensor apart(const Tensors& t, bool gelu) {
  const at::Tensor x = layer_norm(t[0], t[1], t[2], kEpsilon);
  return gelu ? linear_gelu(x, t[3], t[4]) : linear(x, t[3], t[4]);
}

class NormLinear : public ::testing::TestWithParam<std::tuple<NormThenLinearSizes, at::ScalarType, bool>> {};

void expect_the_same(const NormThenLinearSizes& sizes, at::ScalarType dtype, bool gelu) {
  expect_the_same_bits([&](const Tensors& t) { return together(t, gelu); },
                       [&](const Tensors& t) { return apart(t, gelu); }, sizes, dtype);
}

TEST_P(NormLinear, IsBitwiseTheTwoOps) {
  const auto [sizes, dtype, gelu] = GetParam();
  expect_the_same(sizes, dtype, gelu);
  const WithoutKernels by_libtorch;
  expect_the_same(sizes, dtype, gelu);
}

TEST_P(NormLinear, ValueAndGradientsAreThoseOfTheFormula) {
  const auto [sizes, dtype, gelu] = GetParam();
  const Tensors inputs = norm_then_linear_inputs(sizes, dtype);
  Tensors exact;
  for (const at::Tensor& t : inputs) exact.push_back(t.detach().to(at::kDouble).requires_grad_());
  const at::Tensor middle = at::layer_norm(exact[0], {sizes.in}, exact[1], exact[2], kEpsilon);
  const at::Tensor product = at::matmul(middle, exact[3].t()) + exact[4];
  const at::Tensor expected = gelu ? at::gelu(product) : product, found = together(inputs, gelu);
  const at::Tensor direction = at::randn(found.sizes()).to(dtype);
  found.backward(direction);
  expected.backward(direction.to(at::kDouble));
  const auto error = [](const at::Tensor& a, const at::Tensor& b) {
    return ((a.to(at::kDouble) - b).abs().max() / b.abs().max()).item<double>();
  };
  const double tolerance = dtype == at::kFloat ? 2e-5 : 0.03;  // of two ops in a row
  EXPECT_LT(error(found, expected), tolerance);
  for (size_t i = 0; i < inputs.size(); ++i) {
    EXPECT_LT(error(inputs[i].grad(), exact[i].grad()), tolerance) << "input " << i;
  }
}

// Rows that fill blocks and pieces of the kernels, and rows that do not.
INSTANTIATE_TEST_SUITE_P(Grid, NormLinear,
                         ::testing::Combine(::testing::Values(NormThenLinearSizes{64, 64, 96},
                                                              NormThenLinearSizes{11, 33, 50},
                                                              NormThenLinearSizes{700, 80, 49}),
                                            ::testing::Values(at::kFloat, at::kBFloat16), ::testing::Bool()));

TEST(NormLinearOf, OtherDtypesIsBitwiseTheTwoOps) {
  for (const auto dtype : {at::kDouble, at::kHalf}) expect_the_same({9, 32, 40}, dtype, true);
}

TEST(NormLinearOf, StridedAndEmptyInput) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    Tensors t = norm_then_linear_inputs({5, 32, 40}, dtype);
    const at::Tensor direction = at::randn({5, 3, 40}).to(dtype);
    Tensors found;
    for (const bool one : {true, false}) {
      t[0].mutable_grad() = at::Tensor();
      const Tensors turned = {t[0].transpose(0, 1), t[1], t[2], t[3], t[4]};
      const at::Tensor y = one ? together(turned, false) : apart(turned, false);
      y.backward(direction);
      found.insert(found.end(), {y.detach(), t[0].grad()});
    }
    EXPECT_TRUE(at::equal(found[0], found[2]) && at::equal(found[1], found[3])) << dtype;
    t[0] = t[0].detach().narrow(1, 0, 0);
    EXPECT_EQ(together(t, true).sizes().vec(), (std::vector<int64_t>{3, 0, 40}));
  }
}

// A product in another dtype than its factors.
TEST(NormLinearOf, AutocastIsLibTorchs) {
  const WithoutKernels by_libtorch;
  Tensors gradients;
  at::autocast::set_autocast_enabled(at::kCPU, true);
  for (const bool one : {true, false}) {
    const Tensors t = norm_then_linear_inputs({5, 32, 40}, at::kFloat);
    const at::Tensor y = one ? together(t, true) : apart(t, true);
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    y.sum().backward();
    gradients.push_back(t[3].grad());
    at::autocast::clear_cache();
  }
  at::autocast::set_autocast_enabled(at::kCPU, false);
  EXPECT_TRUE(at::equal(gradients[0], gradients[1]));
}

// What comes out, and two numbers a row; of x nothing but x.
TEST(LayerNormKeeps, NoCopyOfItsInput) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const auto kept = [&] {
      const at::Tensor x = at::randn({50, 64}).to(dtype).requires_grad_();
      const at::Tensor weight = at::ones({64}, dtype).requires_grad_(), bias = at::zeros({64}, dtype);
      const LiveBytes live;
      const at::Tensor y = layer_norm(x, weight, bias, kEpsilon);
      return live.now();
    };
    const auto expected = static_cast<int64_t>(50 * 64 * at::elementSize(dtype)) + 50 * 2 * 4;
    EXPECT_EQ(kept(), expected) << dtype;
    const WithoutKernels by_libtorch;
    EXPECT_EQ(kept(), expected) << dtype;
  }
}

}  // namespace
}  // namespace tessera::ops
