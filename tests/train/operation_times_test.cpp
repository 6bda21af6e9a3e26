// SPDX-License-Identifier: Apache-2.0
// What a step's operations are counted as.
#include "tessera/profile/operation_times.h"

#include <ATen/ATen.h>
#include <ATen/ThreadLocalState.h>
#include <gtest/gtest.h>

#include <chrono>
#include <numeric>

#include "tessera/base/clock.h"
#include "tessera/ops/attention.h"
#include "tessera/ops/cpu/peak_rate.h"
#include "tessera/ops/layer_norm.h"
#include "tessera/ops/linear.h"
#include "tessera/profile/rates.h"

namespace tessera::train {
namespace {

using enum OperationKind;

TEST(OperationTimes, KindsOfNames) {
  EXPECT_EQ(kind_of("tessera::linear", false), kGemmForward);
  EXPECT_EQ(kind_of("tessera::linear_weight_gradient", true), kGemmWeight);
  EXPECT_EQ(kind_of("tessera::linear_input_gradient", true), kGemmInput);
  EXPECT_EQ(kind_of("aten::addmm", false), kGemmForward);
  EXPECT_EQ(kind_of("aten::mm", true), kGemmOther);
  EXPECT_EQ(kind_of("tessera::attention_backward", true), kAttentionBackward);
  EXPECT_EQ(kind_of("aten::_scaled_dot_product_flash_attention_for_cpu", false), kAttention);
  EXPECT_EQ(kind_of("aten::native_layer_norm_backward", true), kNorm);
  EXPECT_EQ(kind_of("aten::mkldnn_convolution", false), kConvolution);
  EXPECT_EQ(kind_of("aten::linalg_vector_norm", false), kOther);
  EXPECT_EQ(kind_of("aten::mul", true), kOther);
  EXPECT_EQ(kind_of("tessera::optimizer", false), kOptimizer);
}

double of(const OperationTimes& times, OperationKind kind) {
  return times.seconds()[static_cast<size_t>(kind)];
}

/// One block's kinds of operation, forward and backward.
void work(at::ScalarType dtype) {
  const auto options = at::TensorOptions().dtype(dtype);
  const auto parameter = [&](at::IntArrayRef shape) { return at::randn(shape, options).requires_grad_(); };
  const at::Tensor x = parameter({4, 64, 96}), weight = parameter({288, 96}), bias = parameter({288});
  const at::Tensor scale = parameter({96}), shift = parameter({96});
  ops::self_attention(ops::linear(ops::layer_norm(x, scale, shift, 1e-6), weight, bias), 3).sum().backward();
}

class EachDtype : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(EachDtype, EveryKindOfABlockIsSeenAndNoSecondTwice) {
  const auto start = std::chrono::steady_clock::now();
  const OperationTimes times;
  work(GetParam());
  for (const OperationKind kind : {kGemmForward, kAttention, kAttentionBackward, kNorm, kOther}) {
    EXPECT_GT(of(times, kind), 0) << name_of(kind);
  }
  // Tessera's own kernels say which of the two it is; LibTorch's do not.
  EXPECT_GT(of(times, kGemmWeight) + of(times, kGemmOther), 0);
  const OperationTimes::Seconds seconds = times.seconds();
  const double sum = std::accumulate(seconds.begin(), seconds.end(), 0.0);
  EXPECT_LE(sum, seconds_since(start));
}

INSTANTIATE_TEST_SUITE_P(Dtypes, EachDtype, ::testing::Values(at::kFloat, at::kBFloat16));

// As autograd does on a device, whose backward passes have threads of their own.
TEST(OperationTimes, ThreadsThatWorkForThisOneCount) {
  const OperationTimes times;
  const at::ThreadLocalState of_this_thread;
  std::thread([&] {
    const at::ThreadLocalStateGuard as_there(of_this_thread);
    work(at::kFloat);
  }).join();
  EXPECT_GT(of(times, kGemmForward), 0);
  EXPECT_GT(of(times, kAttentionBackward), 0);
  const double before = of(times, kGemmForward);
  std::thread([] { work(at::kFloat); }).join();
  EXPECT_EQ(of(times, kGemmForward), before) << "other threads do not";
}

TEST(OperationTimes, CountsOnlyWhileItLives) {
  { const OperationTimes times; }
  work(at::kFloat);
  const OperationTimes times;
  EXPECT_EQ(of(times, kGemmForward), 0);
}

// Zeros and ones are multiplied faster than what a training multiplies.
TEST(MatmulOperands, AreTheSameNormallyDistributedValuesInEveryCall) {
  at::manual_seed(7);
  const at::Tensor expected_next = at::rand({4});
  at::manual_seed(7);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const auto [rows, weight] = matmul_operands(dtype, at::kCPU);
    const auto again = matmul_operands(dtype, at::kCPU);
    EXPECT_EQ(rows.size(1), weight.size(1));
    EXPECT_TRUE(at::equal(rows, again.rows));
    EXPECT_TRUE(at::equal(weight, again.weight));
    for (const at::Tensor& t : {rows, weight}) {
      EXPECT_EQ(t.scalar_type(), dtype);
      const at::Tensor wide = t.to(at::kDouble);
      EXPECT_LT(std::abs(wide.mean().item<double>()), 0.01);
      EXPECT_LT(std::abs(wide.std().item<double>() - 1), 0.01);
      EXPECT_GT(wide.abs().max().item<double>(), 3);
    }
  }
  EXPECT_TRUE(at::equal(at::rand({4}), expected_next)) << "LibTorch's default generator is left alone";
}

TEST(PeakRate, IsThatOfACpuOrNone) {
  for (const bool bf16 : {false, true}) {
    const double rate = ops::peak_rate(bf16, 0.02);
    if (rate > 0) {
      EXPECT_GT(rate, 1e9);
      EXPECT_LT(rate, 1e14);
    }
  }
}

}  // namespace
}  // namespace tessera::train
