// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "tests/cuda_kernels/kernel_cases.h"
#include "tests/cuda_kernels/table.h"

namespace tessera::ops {
namespace {

using cuda::UsingKernels;

TEST(Norm, ValuesAndGradientsAreTheFormulas) {
  const UsingKernels kernels;
  const std::array<at::ScalarType, 3> dtypes = {at::kFloat, at::kBFloat16, at::kHalf};
  size_t number = 0;  // every size in every dtype, every use in every dtype
  for (const NormCase& size : norm_cases()) {
    for (const NormUse& use : norm_uses()) expect_the_norm(size, use, dtypes[number++ % 3], at::kCPU);
  }
}

// More rows than blocks, which add several up: the order of sums is the same whatever the number of rows is.
TEST(Norm, ParametersGradientsOfManyRows) {
  const UsingKernels kernels;
  ASSERT_LT(cuda::norm_parts(2500, 33), 2500);
  expect_the_norm({2500, 33}, {false, true, true}, at::kFloat, at::kCPU);
  expect_the_norm({2100, 40}, {true, true, true}, at::kBFloat16, at::kCPU);
  expect_the_norm({70, 8200}, {false, true, true}, at::kBFloat16, at::kCPU);  // of columns beyond a block's
}

TEST(Norm, TakesTensorsThatAreNotContiguousOrAligned) {
  const UsingKernels kernels;
  const at::Tensor weight = at::randn({32}), bias = at::randn({32}), x = at::randn({4, 6, 32});
  EXPECT_TRUE(at::equal(layer_norm(x.transpose(0, 1), weight, bias, 1e-6),
                        layer_norm(x, weight, bias, 1e-6).transpose(0, 1)));
  const at::Tensor shifted = at::randn({97}).narrow(0, 1, 96).view({3, 32});
  EXPECT_LT(error(layer_norm(shifted, weight, bias, 1e-6),
                  at::layer_norm(shifted.to(at::kDouble), {32}, weight.to(at::kDouble), bias.to(at::kDouble),
                                 1e-6)),
            1e-5);
  EXPECT_EQ(layer_norm(x.narrow(0, 0, 0), weight, bias, 1e-6).numel(), 0);
}

TEST(Norm, FrozenParametersGetNoGradient) {
  const UsingKernels kernels;
  const at::Tensor x = at::randn({9, 24}).requires_grad_(), weight = at::randn({24}), bias = at::randn({24});
  layer_norm(x, weight, bias, 1e-6).square().sum().backward();
  const at::Tensor exact = x.detach().to(at::kDouble).requires_grad_();
  at::layer_norm(exact, {24}, weight.to(at::kDouble), bias.to(at::kDouble), 1e-6).square().sum().backward();
  EXPECT_LT(error(x.grad(), exact.grad()), 1e-5);
  EXPECT_FALSE(weight.grad().defined());
}

TEST(Norm, ANanStaysInItsRow) {
  const UsingKernels kernels;
  at::Tensor x = at::randn({3, 37});
  x[1][36] = std::nan("");
  const at::Tensor y = layer_norm(x, at::ones({37}), at::zeros({37}), 1e-6);
  EXPECT_TRUE(at::isnan(y[1]).all().item<bool>());
  EXPECT_TRUE(at::isfinite(y[0]).all().item<bool>() && at::isfinite(y[2]).all().item<bool>());
}

}  // namespace
}  // namespace tessera::ops
