// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/layer_norm.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "tests/ops/beside_formula.h"
#include "tests/ops/has_kernels.h"

namespace tessera::ops {
namespace {

class LayerNormOp : public ::testing::TestWithParam<std::tuple<int64_t, int64_t, at::ScalarType>> {};

TEST_P(LayerNormOp, ValueAndGradientsAreThoseOfTheFormula) {
  at::manual_seed(4);
  const auto [rows, width, dtype] = GetParam();
  std::vector<at::Tensor> inputs = {(3 + 2 * at::randn({rows, width})).to(dtype).requires_grad_(),
                                    (1 + at::randn({width}) / 4).to(dtype).requires_grad_(),
                                    at::randn({width}).to(dtype).requires_grad_()};
  std::vector<at::Tensor> exact;
  for (const auto& input : inputs) {
    exact.push_back(input.detach().to(at::kDouble).requires_grad_());
  }
  const at::Tensor y = layer_norm(inputs[0], inputs[1], inputs[2], 1e-6);
  const at::Tensor expected = at::layer_norm(exact[0], {width}, exact[1], exact[2], 1e-6);
  const double tolerance = dtype == at::kFloat ? 1e-5 : 0.015;
  EXPECT_EQ(y.scalar_type(), dtype);
  EXPECT_LT(error(y, expected), tolerance);
  const at::Tensor direction = at::randn(y.sizes()).to(dtype);
  y.backward(direction);
  expected.backward(direction.to(at::kDouble));
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_LT(error(inputs[i].grad(), exact[i].grad()), tolerance) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Grid, LayerNormOp,
                         ::testing::Combine(::testing::Values(1, 7, 2500),
                                            ::testing::Values(5, 16, 33, 128, 200, 768),
                                            ::testing::Values(at::kFloat, at::kBFloat16)));

// As a residual branch has it: the norm's rows go one way, what they were made of another.
TEST_P(LayerNormOp, GradientsOfBothResultsAreAddedUp) {
  at::manual_seed(5);
  const auto [rows, width, dtype] = GetParam();
  for (const bool sum : {false, true}) {
    for (const bool rows_used : {true, false}) {
      const auto values = [&, rows = rows, width = width, dtype = dtype] {
        return (1 + 2 * at::randn({rows, width})).to(dtype).requires_grad_();
      };
      const std::vector<at::Tensor> inputs = {values(), values()};
      const at::Tensor direction = at::randn({2, rows, width}).to(dtype);
      const at::Tensor weight = at::ones({width}, dtype), bias = at::zeros({width}, dtype);
      const auto backward = [&, width = width](const at::Tensor& y, const at::Tensor& x,
                                               at::ScalarType type) {
        at::Tensor total = (x * direction[1].to(type)).sum();
        if (rows_used) total = total + (y * direction[0].to(type)).sum();
        total.backward();
      };
      const LayerNormOutput found = normed(inputs[0], {weight, bias, 1e-6}, sum ? inputs[1] : at::Tensor());
      backward(found.rows, found.x, dtype);
      const at::Tensor x =
          (sum ? inputs[0] + inputs[1] : inputs[0]).detach().to(at::kDouble).requires_grad_();
      backward(at::layer_norm(x, {width}, weight.to(at::kDouble), {}, 1e-6), x, at::kDouble);
      EXPECT_TRUE(at::equal(found.x, x.to(dtype)));
      for (int i = 0; i < (sum ? 2 : 1); ++i) {
        EXPECT_LT(error(inputs[i].grad(), x.grad()), dtype == at::kFloat ? 1e-5 : 0.015) << i;
      }
      EXPECT_EQ(inputs[1].grad().defined(), sum);
    }
  }
}

// The value, then the gradients of x, weight and bias.
std::vector<at::Tensor> value_and_gradients(const at::Tensor& x_given, int threads) {
  at::set_num_threads(threads);
  at::manual_seed(7);
  const int64_t width = x_given.size(1);
  const std::vector<at::Tensor> inputs = {x_given.detach().clone().requires_grad_(),
                                          at::randn({width}).to(x_given.dtype()).requires_grad_(),
                                          at::randn({width}).to(x_given.dtype()).requires_grad_()};
  const at::Tensor y = layer_norm(inputs[0], inputs[1], inputs[2], 1e-6);
  y.backward(y.detach().sin());
  return {y.detach(), inputs[0].grad(), inputs[1].grad(), inputs[2].grad()};
}

class LayerNormBits : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  void TearDown() override { at::set_num_threads(threads_); }

 private:
  int threads_ = at::get_num_threads();
};

TEST_P(LayerNormBits, DoNotDependOnThreads) {
  // LibTorch's own kernel adds up the parameters' gradients thread by thread.
  if (!has_kernels(GetParam())) GTEST_SKIP() << "no kernel for this CPU";
  const at::Tensor x = at::randn({1999, 88}).to(GetParam());
  const auto expected = value_and_gradients(x, 1);
  for (const int threads : {2, 3, 4}) {
    const auto found = value_and_gradients(x, threads);
    for (size_t i = 0; i < 4; ++i) EXPECT_TRUE(at::equal(found[i], expected[i])) << i << ", " << threads;
  }
}

TEST_P(LayerNormBits, OfARowDoNotDependOnTheOthers) {
  const at::Tensor x = at::randn({700, 88}).to(GetParam());
  const auto all = value_and_gradients(x, 2), some = value_and_gradients(x.slice(0, 300, 311), 1);
  for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(at::equal(all[i].slice(0, 300, 311), some[i])) << i;
}

INSTANTIATE_TEST_SUITE_P(Dtypes, LayerNormBits, ::testing::Values(at::kFloat, at::kBFloat16));

// (16 columns and what is left over: lanes beyond the row must not count.)
TEST(LayerNorm, ANanStaysInItsRow) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    at::Tensor x = at::randn({3, 37}).to(dtype);
    x[1][36] = std::numeric_limits<float>::quiet_NaN();
    const at::Tensor y = layer_norm(x, at::ones({37}, dtype), at::zeros({37}, dtype), 1e-6);
    EXPECT_TRUE(at::isnan(y[1]).all().item<bool>());
    EXPECT_TRUE(at::isfinite(y[0]).all().item<bool>() && at::isfinite(y[2]).all().item<bool>());
  }
}

TEST(LayerNorm, TakesStridedAndEmptyInput) {
  const at::Tensor weight = at::ones({32}, at::kBFloat16), bias = at::zeros({32}, at::kBFloat16);
  const at::Tensor x = at::randn({4, 6, 32}).to(at::kBFloat16);
  EXPECT_TRUE(at::equal(layer_norm(x.transpose(0, 1), weight, bias, 1e-6),
                        layer_norm(x, weight, bias, 1e-6).transpose(0, 1)));
  EXPECT_EQ(layer_norm(x.narrow(0, 0, 0), weight, bias, 1e-6).numel(), 0);
}

}  // namespace
}  // namespace tessera::ops
