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
  // `rows` of a block: of every block at least.
  const auto expect = [](const NormCase& size, int64_t rows, const NormUse& use, at::ScalarType dtype) {
    EXPECT_GT(size.rows, rows * cuda::norm_parts(size.rows, size.width)) << size.width;
    expect_the_norm(size, use, dtype, at::kCPU);
  };
  expect({6200, 40}, 2, {true, true, true}, at::kBFloat16);    // a pack for each thread of one warp
  expect({3700, 33}, 1, {false, true, true}, at::kFloat);      // a value for each thread
  expect({1200, 768}, 1, {true, true, true}, at::kBFloat16);   // of three warps
  expect({230, 8200}, 1, {false, true, true}, at::kBFloat16);  // more packs than threads
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
