#include "tessera/ops/layer_norm.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace tessera::ops {
namespace {

double error(const at::Tensor& a, const at::Tensor& exact) {
  return ((a.to(at::kDouble) - exact).abs().max() / exact.abs().max()).item<double>();
}

class LayerNormOp : public testing::TestWithParam<std::tuple<int64_t, int64_t, at::ScalarType>> {};

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
                         testing::Combine(testing::Values(1, 7, 2500), testing::Values(16, 33, 128, 768),
                                          testing::Values(at::kFloat, at::kBFloat16)));

TEST(LayerNorm, TakesStridedAndEmptyInput) {
  const at::Tensor weight = at::ones({32}, at::kBFloat16), bias = at::zeros({32}, at::kBFloat16);
  const at::Tensor x = at::randn({4, 6, 32}).to(at::kBFloat16);
  EXPECT_TRUE(at::equal(layer_norm(x.transpose(0, 1), weight, bias, 1e-6),
                        layer_norm(x, weight, bias, 1e-6).transpose(0, 1)));
  EXPECT_EQ(layer_norm(x.narrow(0, 0, 0), weight, bias, 1e-6).numel(), 0);
}

}  // namespace
}  // namespace tessera::ops
