// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/fp8_linear.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "tessera/ops/cpu/cpu.h"
#include "tessera/ops/layer_norm.h"
#include "tessera/ops/linear.h"
#include "tests/ops/norm_then_linear.h"

namespace tessera::ops {
namespace {

at::Tensor wide(const at::Tensor& t) { return t.detach().to(at::kDouble); }

/// Rows of every size that float32 has, negative numbers, zeros and ties between two numbers of e4m3.
at::Tensor rows_of_all_sizes(at::ScalarType dtype) {
  at::manual_seed(2);
  at::Tensor rows = at::randn({260, 77});
  for (int64_t i = 0; i < rows.size(0); ++i) {
    rows[i].mul_(std::ldexp(1.0F, static_cast<int>(i) - 135));
    rows[i].narrow(0, 0, 8).mul_(1e-3);  // below the normal numbers of e4m3
  }
  rows.clamp_(-3e38, 3e38);
  rows[5].zero_();
  rows[200].copy_(at::arange(77) / 16.0 + 1);
  rows[201].fill_(448);
  rows[202].fill_(448.5);
  return rows.to(dtype);
}

TEST(Fp8Rounded, KernelsNumbersAreLibTorchs) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor rows = rows_of_all_sizes(dtype);
    const at::Tensor found = fp8_rounded(rows);
    const WithoutKernels foreign;
    const at::Tensor expected = fp8_rounded(rows);
    EXPECT_EQ(found.scalar_type(), at::kBFloat16);
    EXPECT_TRUE(at::equal(found, expected)) << dtype;
  }
}

TEST(Fp8Rounded, ScalesAreTheLeastPowersOfTwoAndNumbersAreE4M3s) {
  const at::Tensor rows = rows_of_all_sizes(at::kFloat);
  const Fp8Rows found = fp8_rows(rows);
  EXPECT_EQ(found.numbers.scalar_type(), at::kFloat8_e4m3fn);
  const at::Tensor largest = wide(rows).abs().amax(1);
  for (int64_t i = 0; i < rows.size(0); ++i) {
    const auto scale = found.scales[i][0].item<float>(), most = largest[i].item<float>();
    int exponent = 0;
    EXPECT_EQ(std::frexp(scale, &exponent), 0.5F) << "row " << i << ": " << scale;
    EXPECT_LE(most / scale, 448.0F) << "row " << i;
    if (scale > 0x1p-124F) {
      EXPECT_GT(most / scale, 224.0F) << "row " << i;
    }
  }
  // Half of a step: 2^-4 of the number, among the least numbers 2^-10 of the scale.
  const at::Tensor bound = at::maximum(wide(rows).abs() / 16, wide(found.scales) * std::ldexp(1.0, -10));
  const at::Tensor apart = (wide(found.numbers.to(at::kFloat)) * wide(found.scales) - wide(rows)).abs();
  EXPECT_TRUE((apart <= bound).all().item<bool>());
  EXPECT_GT((apart / bound).max().item<double>(), 0.9);
  // 448 is e4m3's largest number; 448.5 needs the next scale.
  EXPECT_EQ(found.scales[201][0].item<float>(), 1.0F);
  EXPECT_EQ(found.scales[202][0].item<float>(), 2.0F);
}

struct Fp8Sizes {
  int64_t rows, in, out;
};

class Fp8Linear : public ::testing::TestWithParam<std::tuple<Fp8Sizes, at::ScalarType>> {
 protected:
  void SetUp() override {
    at::manual_seed(1);
    const auto [sizes, dtype] = GetParam();
    const auto values = [dtype = dtype](at::IntArrayRef shape, double scale) {
      return (at::randn(shape) * scale).to(dtype).requires_grad_();
    };
    x = values({sizes.rows, sizes.in}, 1.0);
    weight = values({sizes.out, sizes.in}, 1.0 / std::sqrt(sizes.in));
    bias = values({sizes.out}, 0.5);
    direction = at::randn({sizes.rows, sizes.out}).to(dtype);
  }

  at::Tensor x, weight, bias, direction;
};

/// No number of the product is further from the exact one than rounding the factors, and the result to bf16,
/// can take it.
void expect_within_rounding(const at::Tensor& found, const at::Tensor& left, const at::Tensor& right,
                            const at::Tensor& exact) {
  const auto most = [](const at::Tensor& t) {
    const at::Tensor values = wide(t).abs();
    return values + at::maximum(values / 16, wide(fp8_rows(t.detach()).scales) * std::ldexp(1.0, -10));
  };
  const at::Tensor of_factors =
      at::mm(most(left), most(right).t()) - at::mm(wide(left).abs(), wide(right).abs().t());
  const at::Tensor bound = of_factors + (exact.abs() + of_factors) / 250 + 1e-6;
  const at::Tensor share = (wide(found) - exact).abs() / bound;
  EXPECT_LE(share.max().item<double>(), 1.0);
}

/// The largest difference as a share of the largest value.
double error(const at::Tensor& a, const at::Tensor& exact) {
  return ((wide(a) - exact).abs().max() / exact.abs().max()).item<double>();
}

TEST_P(Fp8Linear, ValueAndGradientsAreWithinTheBoundOfTheFormula) {
  const at::Tensor y = fp8_linear(x, weight, bias);
  EXPECT_EQ(y.scalar_type(), x.scalar_type());
  expect_within_rounding(y, x, weight, at::mm(wide(x), wide(weight).t()) + wide(bias));
  y.backward(direction);
  expect_within_rounding(x.grad(), direction, weight.t(), at::mm(wide(direction), wide(weight)));
  EXPECT_LT(error(weight.grad(), at::mm(wide(direction).t(), wide(x))), 0.01);
  EXPECT_LT(error(bias.grad(), wide(direction).sum(0)), 0.005);
  for (const at::Tensor& t : {x, weight, bias}) EXPECT_EQ(t.grad().scalar_type(), t.scalar_type());
}

// Of the rounded numbers the product is exact but for sums in fp32 and a result in bf16.
TEST_P(Fp8Linear, IsTheProductOfTheRoundedNumbers) {
  const at::Tensor y = fp8_linear(x, weight, bias);
  EXPECT_LT(error(y, at::mm(wide(fp8_rounded(x)), wide(fp8_rounded(weight)).t()) + wide(bias)), 0.005);
  EXPECT_GT(error(y, at::mm(wide(x), wide(weight).t()) + wide(bias)), 0.005);  // others than x and weight
  y.backward(direction);
  const at::Tensor of_x =
      at::mm(wide(fp8_rounded(direction)), wide(fp8_rounded(weight.t().contiguous())).t());
  EXPECT_LT(error(x.grad(), of_x), 0.005);
}

INSTANTIATE_TEST_SUITE_P(All, Fp8Linear,
                         ::testing::Combine(::testing::Values(Fp8Sizes{64, 64, 96}, Fp8Sizes{7, 33, 50},
                                                              Fp8Sizes{1, 200, 17}, Fp8Sizes{130, 48, 1},
                                                              Fp8Sizes{300, 161, 129}),
                                            ::testing::Values(at::kFloat, at::kBFloat16)),
                         [](const auto& info) {
                           const Fp8Sizes& s = std::get<0>(info.param);
                           return std::to_string(s.rows) + "_" + std::to_string(s.in) + "_" +
                                  std::to_string(s.out) +
                                  (std::get<1>(info.param) == at::kFloat ? "_fp32" : "_bf16");
                         });

TEST(Fp8Layer, AfterANormIsBitwiseTheTwoOps) {
  using Tensors = std::vector<at::Tensor>;
  const auto together = [](const Tensors& t) {
    return fp8_linear(normed(t[0], {t[1], t[2], 1e-6}), t[3], t[4]);
  };
  const auto apart = [](const Tensors& t) {
    return fp8_linear(layer_norm(t[0], t[1], t[2], 1e-6), t[3], t[4]);
  };
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    expect_the_same_bits(together, apart, {21, 33, 50}, dtype);
    const WithoutKernels by_libtorch;
    expect_the_same_bits(together, apart, {21, 33, 50}, dtype);
  }
}

TEST(Fp8Layer, AfterAGeluIsBitwiseTheTwoOpsAndKeepsLess) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    std::vector<std::vector<at::Tensor>> found;
    std::vector<int64_t> kept;
    for (const bool together : {true, false}) {
      const std::vector<at::Tensor> t = norm_then_linear_inputs({21, 33, 50}, dtype);
      const LiveBytes live;
      const at::Tensor y =
          together ? fp8_linear(gelu_output(t[0]), t[3], t[4]) : fp8_linear(at::gelu(t[0]), t[3], t[4]);
      kept.push_back(live.now());
      y.sum().backward();
      found.push_back({y.detach(), t[0].grad(), t[3].grad(), t[4].grad()});
    }
    for (size_t i = 0; i < 4; ++i) EXPECT_TRUE(at::equal(found[0][i], found[1][i])) << dtype << i;
    EXPECT_EQ(kept[1] - kept[0], static_cast<int64_t>(3 * 21 * 33 * at::elementSize(dtype)));
  }
}

TEST(Fp8Layer, IsTheSameWithoutKernels) {
  at::manual_seed(4);
  const auto run = [](bool frozen) {
    at::manual_seed(5);
    const at::Tensor x = at::randn({3, 19, 70}).to(at::kBFloat16).requires_grad_();
    const at::Tensor weight = at::randn({45, 70}).to(at::kBFloat16).requires_grad_(!frozen);
    const at::Tensor bias = at::randn({45}).to(at::kBFloat16).requires_grad_(!frozen);
    const at::Tensor y = fp8_linear(x, weight, bias);
    EXPECT_EQ(y.sizes().vec(), (std::vector<int64_t>{3, 19, 45}));
    y.backward(at::randn(y.sizes()).to(at::kBFloat16));
    EXPECT_EQ(weight.grad().defined(), !frozen);
    EXPECT_EQ(bias.grad().defined(), !frozen);
    return std::vector<at::Tensor>{y.detach(), x.grad(), frozen ? y.detach() : weight.grad()};
  };
  for (const bool frozen : {false, true}) {
    const auto expected = run(frozen);
    const WithoutKernels foreign;
    const auto found = run(frozen);
    for (size_t i = 0; i < found.size(); ++i) EXPECT_LT(error(found[i], wide(expected[i])), 0.01) << i;
  }
}

// A row's scale is its own: whatever lies beside it.
TEST(Fp8Layer, ARowsNumbersAreTheSameInAnyBatch) {
  at::manual_seed(6);
  const at::Tensor x = at::randn({100, 128}).to(at::kBFloat16), bias = at::randn({96}).to(at::kBFloat16);
  const at::Tensor weight = at::randn({96, 128}).to(at::kBFloat16);
  x[3].mul_(1000);
  EXPECT_TRUE(at::equal(fp8_rounded(x).narrow(0, 37, 20), fp8_rounded(x.narrow(0, 37, 20))));
  const at::Tensor whole = fp8_linear(x, weight, bias).narrow(0, 37, 20);
  EXPECT_LT(error(fp8_linear(x.narrow(0, 37, 20), weight, bias), wide(whole)), cpu_has_amx() ? 1e-30 : 0.005);
}

TEST(Fp8Layer, WhatIsNotFiniteIsSeen) {
  at::manual_seed(7);
  const at::Tensor weight = at::randn({24, 40}).to(at::kBFloat16), bias = at::randn({24}).to(at::kBFloat16);
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), -INFINITY}) {
    at::Tensor x = at::randn({5, 40}).to(at::kBFloat16);
    x[2][7] = bad;
    x[4].zero_();
    const at::Tensor y = fp8_linear(x, weight, bias).to(at::kFloat);
    EXPECT_TRUE(y[2].isnan().all().item<bool>()) << bad;
    for (const int64_t row : {0, 1, 3}) EXPECT_TRUE(y[row].isfinite().all().item<bool>()) << bad;
    EXPECT_TRUE(at::equal(y[4], bias.to(at::kFloat)));
    at::Tensor odd = weight.clone();
    odd[9][0] = bad;
    const at::Tensor z = fp8_linear(x, odd, bias).to(at::kFloat);
    EXPECT_TRUE(z.select(1, 9).isnan().all().item<bool>()) << bad;
    EXPECT_TRUE(z[0].narrow(0, 0, 9).isfinite().all().item<bool>()) << bad;
    const WithoutKernels foreign;
    EXPECT_TRUE(fp8_linear(x, weight, bias)[2].isnan().all().item<bool>()) << bad;
  }
}

TEST(Fp8Layer, NoRowsGiveNone) {
  const at::Tensor weight = at::randn({24, 40}), bias = at::randn({24});
  EXPECT_EQ(fp8_linear(at::empty({0, 7, 40}), weight, bias).sizes().vec(), (std::vector<int64_t>{0, 7, 24}));
}

bool asked_for_fast = false;  // by the last call below

/// at::_scaled_mm as GPUs have it, for factors with scales of rows: what it refuses, and what it computes.
/// LibTorch's own for CPUs takes one scale a factor.
at::Tensor scaled_mm_of_rows(const at::Tensor& a, const at::Tensor& b, const at::Tensor& scale_a,
                             const at::Tensor& scale_b, const std::optional<at::Tensor>& bias,
                             const std::optional<at::Tensor>& scale_result,
                             std::optional<at::ScalarType> dtype, bool fast) {
  const int64_t m = a.size(0), k = a.size(1), n = b.size(1);
  EXPECT_TRUE(m > 0 && k % 16 == 0 && n % 16 == 0) << m << ' ' << k << ' ' << n;
  EXPECT_EQ(b.size(0), k);
  EXPECT_TRUE(a.is_contiguous() && b.t().is_contiguous());
  EXPECT_TRUE(a.scalar_type() == at::kFloat8_e4m3fn && b.scalar_type() == at::kFloat8_e4m3fn);
  EXPECT_EQ(scale_a.sizes().vec(), (std::vector<int64_t>{m, 1}));
  EXPECT_EQ(scale_b.sizes().vec(), (std::vector<int64_t>{1, n}));
  EXPECT_TRUE(scale_a.is_contiguous() && scale_a.scalar_type() == at::kFloat);
  EXPECT_TRUE(scale_b.is_contiguous() && scale_b.scalar_type() == at::kFloat);
  EXPECT_TRUE(dtype == at::kBFloat16 && !scale_result);
  asked_for_fast = fast;
  at::Tensor y = at::mm(wide(a.to(at::kFloat)), wide(b.to(at::kFloat))) * wide(scale_a) * wide(scale_b);
  if (bias) {
    EXPECT_EQ(bias->sizes().vec(), (std::vector<int64_t>{n}));
    EXPECT_TRUE(bias->is_contiguous() && bias->scalar_type() == at::kBFloat16);
    y += wide(*bias);
  }
  return y.to(at::kBFloat16);
}

TEST(Fp8Layer, ScaledProductAsksForWhatGpusHave) {
  torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
  library.impl("_scaled_mm", scaled_mm_of_rows);  // while this test runs
  at::manual_seed(8);
  for (const auto& [m, k, n] : std::vector<std::tuple<int64_t, int64_t, int64_t>>{
           {32, 64, 48}, {7, 33, 50}, {1, 16, 17}, {0, 16, 16}}) {
    const at::Tensor left = at::randn({m, k}).to(at::kBFloat16);
    const at::Tensor right = at::randn({k, n}).to(at::kBFloat16).t();  // as a weight is in backward
    for (const at::Tensor& bias : {at::Tensor(), at::randn({n}).to(at::kBFloat16)}) {
      const at::Tensor found = scaled_product(left, right, bias);
      EXPECT_EQ(found.scalar_type(), at::kBFloat16);
      ASSERT_EQ(found.sizes().vec(), (std::vector<int64_t>{m, n}));
      EXPECT_TRUE(found.is_contiguous());
      if (m == 0) continue;
      EXPECT_FALSE(asked_for_fast);
      at::Tensor exact = at::mm(wide(fp8_rounded(left)), wide(fp8_rounded(right)).t());
      if (bias.defined()) exact = exact + wide(bias);
      EXPECT_LT(error(found, exact), 0.005) << m << ' ' << k << ' ' << n;
    }
  }
}

}  // namespace
}  // namespace tessera::ops
