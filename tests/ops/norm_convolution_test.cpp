// SPDX-License-Identifier: Apache-2.0
// A norm of images and the convolution after it, where what the norm makes is made again for backward.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "tessera/ops/convolution.h"
#include "tessera/ops/linear.h"
#include "tests/ops/beside_formula.h"
#include "tests/ops/has_kernels.h"
#include "tests/ops/norm_then_linear.h"

namespace tessera::ops {
namespace {

using ConvolutionLayer = std::function<at::Tensor(const Tensors&, bool training)>;

constexpr int64_t kOut = 24;

struct Case {
  int64_t channels, size, kernel, stride;
};

/// x, the norm's weight and bias, its running mean and variance, the convolution's weight.
Tensors convolution_inputs(const Case& c, at::ScalarType dtype) {
  at::manual_seed(5);
  return {
      (1 + 2 * at::randn({3, c.channels, c.size, c.size})).to(dtype).contiguous(kImages).requires_grad_(),
      (1 + at::randn({c.channels}) / 4).to(dtype).requires_grad_(),
      (at::randn({c.channels}) / 4).to(dtype).requires_grad_(),
      at::randn({c.channels}),
      at::rand({c.channels}) + 0.5,
      (at::randn({kOut, c.channels, c.kernel, c.kernel}) / 8).to(dtype).contiguous(kImages).requires_grad_()};
}

BatchNorm norm_of(const Tensors& t) { return {t[1], t[2], t[3], t[4], 1e-5, 0.1}; }

at::Tensor no_bias(const at::Tensor& like) { return at::zeros({kOut}, like.options().requires_grad(false)); }

/// Values, gradients and buffers afterwards, and how many bytes backward kept.
struct Run {
  Tensors values;
  int64_t kept = 0;
};

Run run_once(const ConvolutionLayer& layer, const Case& c, at::ScalarType dtype, bool training, int frozen) {
  Tensors inputs = convolution_inputs(c, dtype);
  if (frozen >= 0) inputs[frozen] = inputs[frozen].detach();
  const LiveBytes live;
  const at::Tensor y = layer(inputs, training);
  Run result{{y.detach()}, live.now()};
  y.backward(at::randn(y.sizes()).to(dtype));
  for (const at::Tensor& input : inputs) result.values.push_back(input.grad());
  result.values.insert(result.values.end(), {inputs[3], inputs[4]});
  return result;
}

void expect_the_same_bits(const ConvolutionLayer& together, const ConvolutionLayer& apart, const Case& c,
                          at::ScalarType dtype, bool less_is_kept) {
  for (const bool training : {true, false}) {
    for (const int frozen : {-1, 0, 1, 2, 5}) {
      SCOPED_TRACE(::testing::Message() << "training " << training << " frozen " << frozen);
      const Run found = run_once(together, c, dtype, training, frozen),
                expected = run_once(apart, c, dtype, training, frozen);
      ASSERT_EQ(found.values.size(), expected.values.size());
      for (size_t i = 0; i < found.values.size(); ++i) {
        ASSERT_EQ(found.values[i].defined(), expected.values[i].defined()) << i;
        if (!found.values[i].defined()) continue;
        EXPECT_TRUE(found.values[i].equal(expected.values[i])) << i;
      }
      if (!less_is_kept || frozen == 5) continue;
      const auto images = static_cast<int64_t>(3 * c.channels * c.size * c.size * at::elementSize(dtype));
      EXPECT_NEAR(expected.kept - found.kept, images, 3 * 4 * c.channels) << "but for mean, scale and shift";
    }
  }
}

class NormConvolution : public ::testing::TestWithParam<std::tuple<Case, at::ScalarType>> {};

TEST_P(NormConvolution, IsBitwiseTheTwoOpsAndKeepsLess) {
  const auto [c, dtype] = GetParam();
  const int64_t stride = c.stride, padding = c.kernel / 2;
  expect_the_same_bits(
      [&](const Tensors& t, bool training) {
        return convolution(normed_images(t[0], norm_of(t), training, /*relu=*/true), t[5], stride);
      },
      [&](const Tensors& t, bool training) {
        return at::conv2d(batch_norm(t[0], norm_of(t), training, {true, {}}), t[5], {}, stride, padding);
      },
      c, dtype, has_kernels(dtype));
}

TEST_P(NormConvolution, OfOnePlaceIsALinearLayer) {
  const auto [c, dtype] = GetParam();
  if (c.kernel > 1) return;  // IsBitwiseTheTwoOpsAndKeepsLess
  expect_the_same_bits(
      [&](const Tensors& t, bool training) {
        return linear(normed_images(t[0], norm_of(t), training, /*relu=*/false), t[5], no_bias(t[5]));
      },
      [&](const Tensors& t, bool training) {
        return linear(batch_norm(t[0], norm_of(t), training).permute({0, 2, 3, 1}), t[5], no_bias(t[5]));
      },
      c, dtype, has_kernels(dtype));
}

INSTANTIATE_TEST_SUITE_P(Grid, NormConvolution,
                         ::testing::Combine(::testing::Values(Case{16, 9, 3, 1}, Case{33, 8, 3, 2},
                                                              Case{48, 7, 1, 1}),
                                            ::testing::Values(at::kFloat, at::kBFloat16)));

}  // namespace
}  // namespace tessera::ops
