// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/linear.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/function.h>

#include <string>
#include <utility>
#include <vector>

#include "tessera/ops/cpu/cpu.h"
#include "tessera/ops/widened_linear.h"
#include "tests/ops/beside_formula.h"
#include "tests/ops/has_kernels.h"

namespace tessera::ops {
namespace {

struct LinearSizes {
  int64_t rows, in, out;
};

at::Tensor values(at::IntArrayRef shape, at::ScalarType dtype, double scale) {
  return (at::randn(shape) * scale).to(dtype).requires_grad_();
}

enum Then { kNothing, kGelu, kAdd };

class LinearOps : public ::testing::TestWithParam<std::tuple<LinearSizes, at::ScalarType, Then>> {};

TEST_P(LinearOps, ValueAndGradientsAreThoseOfTheFormula) {
  at::manual_seed(1);
  const auto [sizes, dtype, then] = GetParam();
  std::vector<at::Tensor> inputs = {values({sizes.rows, sizes.in}, dtype, 1.0),
                                    values({sizes.out, sizes.in}, dtype, 1.0 / std::sqrt(sizes.in)),
                                    values({sizes.out}, dtype, 0.5),
                                    values({sizes.rows, sizes.out}, dtype, 1.0)};
  const at::Tensor direction = at::randn({sizes.rows, sizes.out}).to(dtype);
  std::vector<at::Tensor> exact;
  for (const auto& input : inputs) {
    exact.push_back(input.detach().to(at::kDouble).requires_grad_());
  }
  const auto formula = [then = then](const std::vector<at::Tensor>& t) {
    const at::Tensor y = at::mm(t[0], t[1].t()) + t[2];
    return then == kGelu ? at::gelu(y) : then == kAdd ? y + t[3] : y;
  };
  const at::Tensor y = then == kGelu  ? linear_gelu(inputs[0], inputs[1], inputs[2])
                       : then == kAdd ? linear_add(inputs[0], inputs[1], inputs[2], inputs[3])
                                      : linear(inputs[0], inputs[1], inputs[2]);
  const at::Tensor expected = formula(exact);
  const double tolerance = dtype == at::kFloat ? 1e-5 : 0.01;
  EXPECT_EQ(y.scalar_type(), dtype);
  EXPECT_LT(error(y, expected), tolerance);
  y.backward(direction);
  expected.backward(direction.to(at::kDouble));
  for (size_t i = 0; i < (then == kAdd ? 4 : 3); ++i) {
    EXPECT_LT(error(inputs[i].grad(), exact[i].grad()), tolerance) << "input " << i;
  }
}

// Sizes that fill tiles and blocks of registers, sizes that fill none of them or leave some of each, and more
// rows than the sums of a weight's gradient take at a time, in pieces of which the last is shorter.
INSTANTIATE_TEST_SUITE_P(
    Grid, LinearOps,
    ::testing::Combine(
        ::testing::Values(LinearSizes{64, 64, 96}, LinearSizes{33, 49, 130}, LinearSizes{1, 1, 1},
                          LinearSizes{100, 128, 10}, LinearSizes{31, 33, 15}, LinearSizes{257, 96, 48},
                          LinearSizes{7, 200, 65}, LinearSizes{2601, 34, 81}, LinearSizes{2049, 49, 300},
                          LinearSizes{1700, 256, 40}, LinearSizes{3400, 256, 40}),
        ::testing::Values(at::kFloat, at::kBFloat16), ::testing::Values(kNothing, kGelu, kAdd)));

// Long enough for the kernels to cut the sums into pieces; 8,200 ends in the middle of a tile.
TEST(Linear, LongSumsAreThoseOfTheFormula) {
  at::manual_seed(2);
  for (const auto dtype : {at::kBFloat16, at::kFloat}) {
    const double tolerance = dtype == at::kFloat ? 1e-5 : 0.005;
    for (const int64_t in : {1700, 8192, 8193, 8200, 20480}) {
      const at::Tensor x = at::randn({70, in}).to(dtype).requires_grad_();
      const at::Tensor weight = (at::randn({150, in}) / std::sqrt(in)).to(dtype).requires_grad_();
      const at::Tensor bias = at::randn({150}).to(dtype);
      const at::Tensor residual = at::randn({70, 150}).to(dtype);
      const at::Tensor exact = at::mm(x.to(at::kDouble), weight.to(at::kDouble).t()) + bias.to(at::kDouble);
      EXPECT_LT(error(linear(x, weight, bias), exact), tolerance) << in;
      EXPECT_LT(error(linear_add(x, weight, bias, residual), exact + residual.to(at::kDouble)), tolerance)
          << in;
      // Backward through the transposed weight: a sum over `in`.
      const at::Tensor wide =
          linear(residual, weight.detach().t().contiguous().requires_grad_(), bias.new_zeros({in}));
      const at::Tensor back = residual.to(at::kDouble).matmul(weight.detach().to(at::kDouble));
      EXPECT_LT(error(wide, back), tolerance) << in;
      const at::Tensor leaf = residual.detach().clone().requires_grad_();
      linear(leaf, weight.detach().t().contiguous().requires_grad_(), bias.new_zeros({in}))
          .backward(x.detach());
      const at::Tensor expected = x.detach().to(at::kDouble).matmul(weight.detach().to(at::kDouble).t());
      EXPECT_LT(error(leaf.grad(), expected), tolerance) << in;
    }
  }
}

// So many rows that they come in pieces, and so large a weight that its gradient is made in parts.
TEST(Linear, LargeWeightsGradientIsThatOfTheFormula) {
  at::manual_seed(4);
  for (const auto& [dtype, rows] : {std::pair{at::kFloat, 830}, {at::kBFloat16, 1650}}) {
    const at::Tensor x = at::randn({rows, 16384}).to(dtype), direction = at::randn({rows, 1100}).to(dtype);
    const at::Tensor weight = at::zeros({1100, 16384}, dtype).requires_grad_();
    const at::Tensor bias = at::zeros({1100}, dtype).requires_grad_();
    linear(x, weight, bias).backward(direction);
    const double tolerance = dtype == at::kFloat ? 1e-5 : 0.01;
    EXPECT_LT(error(weight.grad(), at::mm(direction.to(at::kFloat).t(), x.to(at::kFloat))), tolerance);
    EXPECT_LT(error(bias.grad(), direction.to(at::kFloat).sum(0)), tolerance);
  }
}

// More rows than sums wait for at a time between cuts of a long sum, forward and backward.
TEST(Linear, RowsOfLongSumsComeInGroups) {
  at::manual_seed(5);
  const int64_t rows = 4160, in = 1056, out = 1024;
  const at::Tensor x = at::randn({rows, in}).to(at::kBFloat16).requires_grad_();
  const at::Tensor weight = (at::randn({out, in}) / std::sqrt(in)).to(at::kBFloat16);
  const at::Tensor bias = at::randn({out}).to(at::kBFloat16);
  const at::Tensor residual = at::randn({rows, out}).to(at::kBFloat16);
  const auto wide = [](const at::Tensor& t) { return t.detach().to(at::kFloat); };
  const at::Tensor exact = at::mm(wide(x), wide(weight).t()) + wide(bias);
  EXPECT_LT(error(linear_gelu(x, weight, bias), at::gelu(exact)), 0.005);
  const at::Tensor y = linear_add(x, weight, bias, residual);
  EXPECT_LT(error(y, exact + wide(residual)), 0.005);
  y.backward(residual);
  EXPECT_LT(error(x.grad(), at::mm(wide(residual), wide(weight))), 0.005);
}

// Every number that bf16 has: to its rounding, and an absolute error that only zeros and far tails show.
TEST(Linear, GeluIsThatOfTheFormulaForEveryNumber) {
  const at::Tensor all = at::arange(0, 1 << 16, at::kInt).to(at::kShort).view(at::kBFloat16);
  const at::Tensor finite = all.masked_select(all.isfinite().logical_and(all.abs().lt(1e30)));
  for (const auto& [dtype, rounding] : {std::pair{at::kBFloat16, 0.004}, {at::kFloat, 2e-6}}) {
    const at::Tensor x = finite.to(dtype).view({-1, 1}).requires_grad_();
    const at::Tensor weight = at::ones({1, 1}, dtype).requires_grad_(), bias = at::zeros({1}, dtype);
    const at::Tensor exact = x.detach().to(at::kDouble).requires_grad_();
    const at::Tensor y = linear_gelu(x, weight, bias), expected = at::gelu(exact);
    y.sum().backward();
    expected.sum().backward();
    for (const auto& [found, formula] : {std::pair{y, expected}, {x.grad(), exact.grad()}}) {
      const at::Tensor excess = (found.to(at::kDouble) - formula).abs() - formula.abs() * rounding;
      EXPECT_LT(excess.max().item<double>(), 2e-6) << dtype;
    }
  }
}

TEST(Linear, TakesAnyShapeAndConvolutionWeights) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor x = at::randn({3, 5, 48}).to(dtype);
    const at::Tensor weight = (at::randn({32, 3, 4, 4}) / 7).to(dtype).requires_grad_();
    const at::Tensor bias = at::zeros({32}, dtype);
    const at::Tensor y = linear(x, weight, bias);
    EXPECT_EQ(y.sizes().vec(), (std::vector<int64_t>{3, 5, 32}));
    y.sum().backward();
    EXPECT_EQ(weight.grad().sizes().vec(), weight.sizes().vec());
    EXPECT_TRUE(at::equal(linear(x.transpose(0, 1).contiguous().transpose(0, 1), weight, bias), y));
    EXPECT_EQ(linear(x.narrow(0, 0, 0), weight, bias).sizes().vec(), (std::vector<int64_t>{0, 5, 32}));
  }
}

TEST(Linear, RunsInAKernelWhereTheCpuHasOne) {
  for (const auto dtype : {at::kBFloat16, at::kFloat}) {
    const auto name = [&] {
      const at::Tensor weight = at::zeros({3, 2}, dtype).requires_grad_();
      return linear(at::zeros({1, 2}, dtype), weight, at::zeros({3}, dtype)).grad_fn()->name();
    };
    EXPECT_EQ(name().find("FastLinear") != std::string::npos, has_kernels(dtype)) << name();
    const WithoutKernels none;
    EXPECT_EQ(name().find("FastLinear"), std::string::npos) << name();
  }
}

// A row's result does not depend on the rows beside it: not on which of them share a block or a piece.
TEST(Linear, IsBitwiseTheSameInAnyBatch) {
  int found = 0;
  for (const auto dtype : {at::kBFloat16, at::kFloat}) {
    if (!has_kernels(dtype)) continue;
    ++found;
    for (const int64_t in : {128, 49, 2000}) {
      const at::Tensor x = at::randn({600, in}).to(dtype), weight = at::randn({96, in}).to(dtype);
      const at::Tensor bias = at::randn({96}).to(dtype);
      const at::Tensor whole = linear_gelu(x, weight, bias);
      for (const auto& [first, rows] : {std::pair{37, 20}, {250, 13}, {599, 1}})
        EXPECT_TRUE(
            at::equal(whole.narrow(0, first, rows), linear_gelu(x.narrow(0, first, rows), weight, bias)))
            << dtype << " " << in << " " << first;
    }
  }
  if (found == 0) GTEST_SKIP() << "this CPU has no kernels";
}

TEST(Linear, AFrozenLayerPassesTheGradientOn) {
  at::manual_seed(5);
  for (const auto dtype : {at::kBFloat16, at::kFloat}) {
    const at::Tensor x = values({40, 24}, dtype, 1.0), weight = values({30, 24}, dtype, 0.2).detach();
    const at::Tensor bias = values({30}, dtype, 1.0);
    const at::Tensor direction = at::randn({40, 30}).to(dtype);
    for (const bool bias_learns : {false, true}) {
      x.mutable_grad() = at::Tensor();
      linear(x, weight, bias_learns ? bias : bias.detach()).backward(direction);
      EXPECT_LT(error(x.grad(), direction.to(at::kDouble).matmul(weight.to(at::kDouble))), 0.01);
      EXPECT_FALSE(weight.grad().defined());
      ASSERT_EQ(bias.grad().defined(), bias_learns);
    }
    EXPECT_LT(error(bias.grad(), direction.to(at::kDouble).sum(0)), 0.01);
  }
}

// Result and gradients of one layer, all in one.
at::Tensor everything(at::ScalarType dtype, int64_t rows, int64_t in, int64_t out) {
  at::manual_seed(4);
  const at::Tensor x = values({rows, in}, dtype, 1.0), weight = values({out, in}, dtype, 0.1);
  const at::Tensor bias = values({out}, dtype, 1.0), direction = at::randn({rows, out}).to(dtype);
  const at::Tensor y = linear_gelu(x, weight, bias);
  y.backward(direction);
  return at::cat({y.flatten(), x.grad().flatten(), weight.grad().flatten(), bias.grad()});
}

TEST(Linear, IsBitwiseTheSameOnAnyThreads) {
  int found = 0;
  const int threads = at::get_num_threads();
  for (const auto dtype : {at::kBFloat16, at::kFloat}) {
    if (!has_kernels(dtype)) continue;
    ++found;
    for (const auto& [rows, in, out] :
         {LinearSizes{1030, 192, 200}, LinearSizes{77, 1601, 33}, LinearSizes{3300, 96, 200}}) {
      at::set_num_threads(1);
      const at::Tensor expected = everything(dtype, rows, in, out);
      for (int n = 2; n <= 4; ++n) {
        at::set_num_threads(n);
        EXPECT_TRUE(at::equal(everything(dtype, rows, in, out), expected)) << dtype << " " << n << " threads";
      }
    }
  }
  at::set_num_threads(threads);
  if (found == 0) GTEST_SKIP() << "this CPU has no kernels";
}

// More rows of x and of the weight than one piece has; what is frozen gets no gradient. (linear() comes to it
// on some CPUs only.)
TEST(WidenedLinear, ValueAndGradientsAreThoseOfTheFormula) {
  at::manual_seed(3);
  for (const bool gelu : {false, true}) {
    for (const auto& [of_x, of_weight] : {std::pair{true, true}, {true, false}, {false, true}}) {
      const at::Tensor x = at::randn({2, 300, 256}).to(at::kBFloat16).requires_grad_(of_x);
      const at::Tensor weight = (at::randn({1100, 256}) / 16).to(at::kBFloat16).requires_grad_(of_weight);
      const at::Tensor bias = at::randn({1100}).to(at::kBFloat16).requires_grad_();
      const at::Tensor residual = at::randn({2, 300, 1100}).to(at::kBFloat16).requires_grad_();
      const at::Tensor direction = at::randn({2, 300, 1100}).to(at::kBFloat16);
      std::vector<at::Tensor> given = {x, weight, bias, residual}, exact;
      for (const auto& t : given) {
        exact.push_back(t.detach().to(at::kDouble).requires_grad_(t.requires_grad()));
      }
      const at::Tensor y = widened_linear(x, weight, bias, residual, gelu);
      const at::Tensor sum = at::matmul(exact[0], exact[1].t()) + exact[2];
      const at::Tensor expected = (gelu ? at::gelu(sum) : sum) + exact[3];
      EXPECT_LT(error(y, expected), 0.005);
      y.backward(direction);
      expected.backward(direction.to(at::kDouble));
      for (size_t i = 0; i < given.size(); ++i) {
        ASSERT_EQ(given[i].grad().defined(), given[i].requires_grad()) << i;
        if (!given[i].requires_grad()) continue;
        EXPECT_LT(error(given[i].grad(), exact[i].grad()), 0.01) << i;
      }
    }
  }
}

TEST(LinearGelu, ExtremesOfTheActivation) {
  const at::Tensor weight = at::eye(32).to(at::kBFloat16), bias = at::zeros({32}, at::kBFloat16);
  at::Tensor x = at::zeros({1, 32}, at::kBFloat16);
  x[0][0] = 1000;
  x[0][1] = -1000;
  x[0][2] = 1e-3;
  x[0][3] = -4.0;
  const at::Tensor y = linear_gelu(x, weight, bias).to(at::kFloat)[0];
  EXPECT_EQ(y[0].item<float>(), 1000.0F);
  EXPECT_EQ(y[1].item<float>(), 0.0F);
  EXPECT_NEAR(y[2].item<float>(), 5e-4, 5e-6);
  EXPECT_NEAR(y[3].item<float>(), -4.0 * 3.167e-5, 3e-6);
  EXPECT_EQ(y[4].item<float>(), 0.0F);
  x[0][5] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(linear_gelu(x, weight, bias)[0][5].item<float>()));
}

}  // namespace
}  // namespace tessera::ops
