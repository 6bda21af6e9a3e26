// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/mlp.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <vector>

#include "tessera/ops/cpu/cpu.h"
#include "tessera/ops/linear.h"
#include "tests/ops/beside_formula.h"
#include "tests/ops/has_kernels.h"
#include "tests/ops/norm_then_linear.h"

namespace tessera::ops {
namespace {

// Tensors: x, the norm's weight and bias, fc1's, fc2's, the residual.
struct MlpSizes {
  int64_t rows, width, hidden;
};

Tensors mlp_inputs(const MlpSizes& s, at::ScalarType dtype) {
  at::manual_seed(3);
  const auto values = [&](at::IntArrayRef shape, double scale) {
    return (at::randn(shape) * scale).to(dtype).requires_grad_();
  };
  return {values({2, s.rows, s.width}, 1.0),
          (1 + at::randn({s.width}) / 4).to(dtype).requires_grad_(),
          values({s.width}, 0.25),
          values({s.hidden, s.width}, 1 / std::sqrt(s.width)),
          values({s.hidden}, 0.5),
          values({s.width, s.hidden}, 1 / std::sqrt(s.hidden)),
          values({s.width}, 0.5),
          values({2, s.rows, s.width}, 1.0)};
}

at::Tensor whole(const Tensors& t, bool residual) {
  return mlp(normed(t[0], {t[1], t[2], kEpsilon}), t[3], t[4], t[5], t[6], residual ? t[7] : at::Tensor());
}

at::Tensor two_layers(const Tensors& t, bool residual) {
  const at::Tensor hidden = linear_gelu(normed(t[0], {t[1], t[2], kEpsilon}), t[3], t[4]);
  return residual ? linear_add(hidden, t[5], t[6], t[7]) : linear(hidden, t[5], t[6]);
}

at::Tensor mlp_formula(const Tensors& t, bool residual) {
  const at::Tensor x = at::layer_norm(t[0], {t[0].size(-1)}, t[1], t[2], kEpsilon);
  const at::Tensor y = at::linear(at::gelu(at::linear(x, t[3], t[4])), t[5], t[6]);
  return residual ? y + t[7] : y;
}

class Mlp : public ::testing::TestWithParam<std::tuple<MlpSizes, at::ScalarType, bool>> {};

TEST_P(Mlp, ValueAndGradientsAreThoseOfTheFormula) {
  const auto [sizes, dtype, residual] = GetParam();
  const Tensors inputs = mlp_inputs(sizes, dtype);
  Tensors exact;
  for (const at::Tensor& t : inputs) exact.push_back(t.detach().to(at::kDouble).requires_grad_());
  const at::Tensor found = whole(inputs, residual), expected = mlp_formula(exact, residual);
  const double tolerance = dtype == at::kFloat ? 2e-5 : 0.03;  // of three ops in a row
  ASSERT_EQ(found.scalar_type(), dtype);
  EXPECT_LT(error(found, expected), tolerance);
  const at::Tensor direction = at::randn(found.sizes()).to(dtype);
  found.backward(direction);
  expected.backward(direction.to(at::kDouble));
  for (size_t i = 0; i < (residual ? 8 : 7); ++i) {
    EXPECT_LT(error(inputs[i].grad(), exact[i].grad()), tolerance) << "input " << i;
  }
  EXPECT_EQ(inputs[7].grad().defined(), residual);
}

// Forward is that of the two layers bit for bit, and so is the gradient of fc2, whose input is made again;
// the rest of backward rounds once less where it is one pass.
TEST_P(Mlp, IsTheTwoLayersWhateverIsFrozen) {
  const auto [sizes, dtype, residual] = GetParam();
  for (int frozen = -1; frozen < 8; ++frozen) {
    std::vector<Tensors> gradients;
    Tensors values;
    for (const bool one : {true, false}) {
      Tensors inputs = mlp_inputs(sizes, dtype);
      if (frozen >= 0) inputs[frozen] = inputs[frozen].detach();
      const at::Tensor y = one ? whole(inputs, residual) : two_layers(inputs, residual);
      y.backward(at::randn(y.sizes()).to(dtype));
      values.push_back(y.detach());
      gradients.emplace_back();
      for (const at::Tensor& t : inputs) gradients.back().push_back(t.grad());
    }
    EXPECT_TRUE(at::equal(values[0], values[1])) << frozen;
    for (size_t i = 0; i < 8; ++i) {
      const at::Tensor &a = gradients[0][i], &b = gradients[1][i];
      ASSERT_EQ(a.defined(), b.defined()) << "input " << i << ", frozen " << frozen;
      if (!a.defined()) continue;
      if (i == 5 || i == 6) {
        EXPECT_TRUE(at::equal(a, b)) << "input " << i << ", frozen " << frozen;
      }
      EXPECT_LT(error(a, b.to(at::kDouble)), dtype == at::kFloat ? 1e-5 : 0.01)
          << "input " << i << ", frozen " << frozen;
    }
  }
}

// Rows and columns that fill the kernels' blocks, and rows, columns and a width that do not.
INSTANTIATE_TEST_SUITE_P(Grid, Mlp,
                         ::testing::Combine(::testing::Values(MlpSizes{32, 64, 192}, MlpSizes{11, 33, 49},
                                                              MlpSizes{1, 3, 1}, MlpSizes{350, 80, 1700}),
                                            ::testing::Values(at::kFloat, at::kBFloat16), ::testing::Bool()));

TEST(MlpOf, OtherDtypesAndNoKernels) {
  for (const auto dtype : {at::kDouble, at::kHalf, at::kFloat}) {
    const WithoutKernels none;
    const Tensors inputs = mlp_inputs({9, 32, 40}, dtype);
    const at::Tensor y = whole(inputs, true), expected = two_layers(inputs, true);
    EXPECT_TRUE(at::equal(y, expected)) << dtype;
    const auto gradients = [&](const at::Tensor& of) {
      return torch::autograd::grad({of}, inputs, {at::ones_like(of)});
    };
    const Tensors found = gradients(y), kept = gradients(expected);
    for (size_t i = 0; i < inputs.size(); ++i) EXPECT_TRUE(at::equal(found[i], kept[i])) << dtype << i;
  }
}

// What comes out, what is before GELU, and two numbers a row of the norm.
TEST(MlpOf, KeepsOfTheHiddenLayerOneTensor) {
  const MlpSizes sizes{30, 32, 96};
  const auto kept = [&](at::ScalarType dtype, bool residual) {
    const Tensors inputs = mlp_inputs(sizes, dtype);
    const LiveBytes live;
    const at::Tensor y = whole(inputs, residual);
    return live.now();
  };
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const bool residual : {false, true}) {
      const int64_t rows = 2 * sizes.rows, numbers = rows * (sizes.width + sizes.hidden);
      const auto expected = numbers * static_cast<int64_t>(at::elementSize(dtype)) + rows * 2 * 4;
      EXPECT_EQ(kept(dtype, residual), expected) << dtype << residual;
      const WithoutKernels by_libtorch;
      EXPECT_EQ(kept(dtype, residual), expected) << dtype << residual;
    }
  }
}

TEST(MlpOf, StridedAndEmptyInput) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    Tensors t = mlp_inputs({5, 32, 40}, dtype);
    t[0] = t[0].transpose(0, 1);
    t[7] = t[7].transpose(0, 1);
    const Tensors copies = {t[0].contiguous(), t[1], t[2], t[3], t[4], t[5], t[6], t[7].contiguous()};
    EXPECT_TRUE(at::equal(whole(t, true), whole(copies, true))) << dtype;
    t[0] = t[0].narrow(0, 0, 0);
    EXPECT_EQ(whole(t, false).sizes().vec(), (std::vector<int64_t>{0, 2, 32}));
  }
}

TEST(MlpOf, AnyThreadsIsTheSameBits) {
  const int threads = at::get_num_threads();
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const auto everything = [&] {
      const Tensors inputs = mlp_inputs({515, 96, 1601}, dtype);
      const at::Tensor y = whole(inputs, true);
      y.backward(at::ones_like(y));
      Tensors flat = {y.detach().flatten()};
      for (const at::Tensor& t : inputs) flat.push_back(t.grad().flatten());
      return at::cat(flat);
    };
    at::set_num_threads(1);
    const at::Tensor expected = everything();
    for (int n = 2; n <= 5; ++n) {
      at::set_num_threads(n);
      // (LibTorch's own kernels promise less.)
      if (!has_kernels(dtype)) continue;
      EXPECT_TRUE(at::equal(everything(), expected)) << dtype << " " << n << " threads";
    }
  }
  at::set_num_threads(threads);
}

}  // namespace
}  // namespace tessera::ops
