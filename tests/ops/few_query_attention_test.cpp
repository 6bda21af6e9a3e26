// SPDX-License-Identifier: Apache-2.0
// Attention without keys and values, beside the formula that has them.
#include "tessera/ops/few_query_attention.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "tessera/ops/attention.h"
#include "tessera/ops/cpu/cpu.h"
#include "tessera/ops/linear.h"
#include "tests/ops/beside_formula.h"
#include "tests/ops/has_kernels.h"
#include "tests/ops/norm_then_linear.h"

namespace tessera::ops {
namespace {

// Tensors: x, the norm's weight and bias, the layer's.
struct FewQuerySizes {
  int64_t batch, tokens, heads, head_width, queries;
};

Tensors few_query_inputs(const FewQuerySizes& s, at::ScalarType dtype) {
  at::manual_seed(6);
  const int64_t width = s.heads * s.head_width;
  const auto values = [&](at::IntArrayRef shape, double scale) {
    return (at::randn(shape) * scale).to(dtype).requires_grad_();
  };
  return {values({s.batch, s.tokens, width}, 2), (1 + at::randn({width}) / 4).to(dtype).requires_grad_(),
          values({width}, 0.25), values({3 * width, width}, 1.5 / std::sqrt(width)),
          values({3 * width}, 0.5)};
}

at::Tensor found_of(const Tensors& t, const FewQuerySizes& s) {
  return few_query_attention(normed(t[0], {t[1], t[2], kEpsilon}), t[3], t[4], s.heads, s.queries);
}

at::Tensor few_query_formula(const Tensors& t, const FewQuerySizes& s) {
  const at::Tensor x = at::layer_norm(t[0], {t[0].size(-1)}, t[1], t[2], kEpsilon);
  const auto parts =
      at::linear(x, t[3], t[4]).view({-1, s.tokens, 3, s.heads, s.head_width}).permute({2, 0, 3, 1, 4});
  const at::Tensor q = parts[0].narrow(2, 0, s.queries);
  const at::Tensor p = at::softmax(at::matmul(q, parts[1].transpose(2, 3)) / std::sqrt(s.head_width), -1);
  return at::matmul(p, parts[2]).transpose(1, 2).flatten(2);
}

double few_query_tolerance(at::ScalarType dtype) {
  return dtype == at::kDouble ? 1e-12 : dtype == at::kFloat ? 2e-5 : 0.03;
}

void expect_the_formula(const FewQuerySizes& sizes, at::ScalarType dtype) {
  const Tensors inputs = few_query_inputs(sizes, dtype), exact = exact_copies(inputs);
  const at::Tensor found = found_of(inputs, sizes), expected = few_query_formula(exact, sizes);
  ASSERT_EQ(found.sizes(), expected.sizes());
  ASSERT_EQ(found.scalar_type(), dtype);
  const double tolerance = few_query_tolerance(dtype);
  EXPECT_LT(error(found, expected), tolerance);
  const at::Tensor direction = at::randn(found.sizes()).to(dtype);
  found.backward(direction);
  expected.backward(direction.to(at::kDouble));
  for (size_t i = 0; i < inputs.size(); ++i) {
    ASSERT_EQ(inputs[i].grad().scalar_type(), dtype);
    EXPECT_LT(error(inputs[i].grad(), exact[i].grad()), tolerance) << "input " << i;
  }
  // Each part of the layer beside its own largest value.
  const int64_t width = sizes.heads * sizes.head_width;
  for (const int64_t part : {0, 1, 2}) {
    const auto of = [&](const at::Tensor& t) { return t.grad().narrow(0, part * width, width); };
    if (sizes.tokens == 1 && part < 2) continue;  // one token: the softmax is constant
    EXPECT_LT(error(of(inputs[3]), of(exact[3])), 2 * tolerance) << "weight " << part;
    if (part == 1) continue;
    EXPECT_LT(error(of(inputs[4]), of(exact[4])), 2 * tolerance) << "bias " << part;
  }
  EXPECT_TRUE(inputs[4].grad().narrow(0, width, width).eq(0).all().item<bool>()) << "the keys' bias";
}

class FewQuery : public ::testing::TestWithParam<std::tuple<FewQuerySizes, at::ScalarType>> {};

TEST_P(FewQuery, ValueAndGradientsAreThoseOfTheFormula) {
  const auto [sizes, dtype] = GetParam();
  expect_the_formula(sizes, dtype);
  const WithoutKernels by_libtorch;
  expect_the_formula(sizes, dtype);
}

// Beside what makes keys and values; two gradients of three are sums of other roundings.
TEST_P(FewQuery, IsTheFirstRowsOfSelfAttention) {
  const auto [sizes, dtype] = GetParam();
  const Tensors t = few_query_inputs(sizes, dtype);
  const LayerNormOutput x = normed(t[0], {t[1], t[2], kEpsilon});
  const at::Tensor whole = self_attention(linear(x, t[3], t[4]), sizes.heads).narrow(1, 0, sizes.queries);
  EXPECT_LT(error(found_of(t, sizes), whole.to(at::kDouble)), few_query_tolerance(dtype));
}

TEST_P(FewQuery, WhateverIsFrozenTheOthersGradientsAreTheSame) {
  const auto [sizes, dtype] = GetParam();
  Tensors expected;
  for (int frozen = -1; frozen < 5; ++frozen) {
    Tensors inputs = few_query_inputs(sizes, dtype);
    if (frozen >= 0) inputs[frozen] = inputs[frozen].detach();
    const at::Tensor y = found_of(inputs, sizes);
    at::manual_seed(7);
    y.backward(at::randn(y.sizes()).to(dtype));
    if (frozen < 0) {
      for (const at::Tensor& t : inputs) expected.push_back(t.grad());
    }
    for (int i = 0; i < 5; ++i) {
      ASSERT_EQ(inputs[i].grad().defined(), i != frozen) << "input " << i << ", frozen " << frozen;
      if (i == frozen) continue;
      EXPECT_TRUE(at::equal(inputs[i].grad(), expected[i])) << i << ", frozen " << frozen;
    }
  }
}

// Sizes that fill the kernels' blocks, and sizes that do not; one token, and more than attention takes.
INSTANTIATE_TEST_SUITE_P(
    Grid, FewQuery,
    ::testing::Combine(::testing::Values(FewQuerySizes{4, 24, 6, 16, 1}, FewQuerySizes{3, 17, 4, 8, 1},
                                         FewQuerySizes{3, 18, 4, 8, 2}, FewQuerySizes{2, 197, 3, 64, 1},
                                         FewQuerySizes{2, 50, 5, 11, 2}, FewQuerySizes{1, 1, 1, 3, 1},
                                         FewQuerySizes{5, 2, 7, 5, 2}, FewQuerySizes{2, 700, 2, 24, 1}),
                       ::testing::Values(at::kDouble, at::kFloat, at::kBFloat16)));

// The result, and the gradients of x and of the parameters.
Tensors values_of(const Tensors& given, const FewQuerySizes& sizes, int threads) {
  at::set_num_threads(threads);
  Tensors inputs, values;
  for (const at::Tensor& t : given) inputs.push_back(t.detach().clone().requires_grad_());
  const at::Tensor y = found_of(inputs, sizes);
  y.backward(y.detach().sin());
  values.push_back(y.detach());
  for (const at::Tensor& t : inputs) values.push_back(t.grad());
  return values;
}

class FewQueryBits : public ::testing::TestWithParam<std::tuple<FewQuerySizes, at::ScalarType>> {
 protected:
  void SetUp() override {
    if (!has_kernels(std::get<1>(GetParam()))) GTEST_SKIP() << "LibTorch's own kernels promise less";
  }
  void TearDown() override { at::set_num_threads(threads_); }

 private:
  int threads_ = at::get_num_threads();
};

TEST_P(FewQueryBits, DoNotDependOnThreads) {
  const auto [sizes, dtype] = GetParam();
  const Tensors inputs = few_query_inputs(sizes, dtype), expected = values_of(inputs, sizes, 1);
  for (const int threads : {2, 3, 4}) {
    const Tensors found = values_of(inputs, sizes, threads);
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_TRUE(at::equal(found[i], expected[i])) << "value " << i << ", " << threads << " threads";
    }
  }
}

TEST_P(FewQueryBits, OfAnImageDoNotDependOnTheBatch) {
  const auto [sizes, dtype] = GetParam();
  const Tensors inputs = few_query_inputs(sizes, dtype), all = values_of(inputs, sizes, 2);
  for (const int64_t images : {1, 2, 3}) {
    for (const int64_t first : {int64_t{0}, int64_t{5}, sizes.batch - images}) {
      Tensors some = inputs;
      some[0] = inputs[0].narrow(0, first, images);
      const Tensors found = values_of(some, sizes, images == 2 ? 2 : 1);
      EXPECT_TRUE(at::equal(found[0], all[0].narrow(0, first, images))) << images << " from " << first;
      EXPECT_TRUE(at::equal(found[1], all[1].narrow(0, first, images))) << images << " from " << first;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Grid, FewQueryBits,
                         ::testing::Combine(::testing::Values(FewQuerySizes{16, 197, 12, 64, 1},
                                                              FewQuerySizes{16, 50, 3, 64, 2},
                                                              FewQuerySizes{16, 17, 5, 11, 2}),
                                            ::testing::Values(at::kFloat, at::kBFloat16)));

// Of all tokens nothing; of each query what goes to the tokens, the shares and what comes back.
TEST(FewQueryOf, KeepsNothingOfTheTokens) {
  const FewQuerySizes s{3, 40, 4, 16, 2};
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const Tensors t = few_query_inputs(s, dtype);
    const LiveBytes live;
    const Norm norm{t[1], t[2], kEpsilon};
    LayerNormOutput x = normed(t[0], norm);
    x.rows = x.rows.detach().requires_grad_();
    const int64_t before = live.now();
    const at::Tensor y = few_query_attention(x, t[3], t[4], s.heads, s.queries);
    const auto c = static_cast<int64_t>(at::elementSize(dtype)), width = s.heads * s.head_width;
    EXPECT_EQ(live.now() - before,
              s.batch * s.queries * (2 * c * width + 2 * c * s.heads * width + 4 * s.heads * s.tokens));
  }
}

TEST(FewQueryOf, HalfWithoutGradientsAndOtherStrides) {
  const FewQuerySizes s{4, 9, 4, 8, 1};
  expect_the_formula(s, at::kHalf);
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    Tensors t = few_query_inputs(s, dtype);
    const at::Tensor expected = found_of(t, s).detach();
    const at::NoGradGuard no_grad;
    EXPECT_TRUE(at::equal(found_of(t, s), expected));
    t[0] = t[0].transpose(0, 1).contiguous().transpose(0, 1);
    t[3] = t[3].t().contiguous().t();
    EXPECT_TRUE(at::equal(found_of(t, s), expected));
    t[0] = t[0].narrow(0, 0, 0);
    EXPECT_EQ(found_of(t, s).sizes().vec(), (std::vector<int64_t>{0, 1, 32}));
  }
}

TEST(FewQueryOf, OfNoImagesGradientsAreZero) {
  const FewQuerySizes s{0, 9, 4, 8, 2};
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const Tensors t = few_query_inputs(s, dtype);
    found_of(t, s).sum().backward();
    EXPECT_EQ(t[3].grad().abs().max().item<double>(), 0);
    EXPECT_EQ(t[4].grad().abs().max().item<double>(), 0);
  }
}

// Scores of hundreds must not overflow, scores far below zero not underflow, and a NaN must not vanish.
TEST(FewQueryOf, LargeScoresAndNan) {
  const FewQuerySizes s{2, 19, 2, 16, 1};
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const at::NoGradGuard no_grad;
    Tensors t = few_query_inputs(s, dtype);
    t[3].mul_(100);
    EXPECT_TRUE(at::isfinite(found_of(t, s)).all().item<bool>());
    const at::Tensor below = at::ones({2, 19, 32}, dtype), weight = at::zeros({96, 32}, dtype);
    weight.narrow(0, 0, 32).fill_(-1);
    weight.narrow(0, 32, 64).fill_(1);
    const at::Tensor y = few_query_attention({below, {t[1], t[2], kEpsilon}, below}, weight,
                                             at::zeros({96}, dtype), s.heads, s.queries);
    EXPECT_LT(error(y, at::full({2, 1, 32}, 32.0, at::kDouble)), 0.01) << "equal scores of -4096";
    t[0][1][18][5] = std::numeric_limits<float>::quiet_NaN();
    const at::Tensor with_nan = found_of(t, s);
    EXPECT_TRUE(at::isfinite(with_nan[0]).all().item<bool>());
    EXPECT_TRUE(at::isnan(with_nan[1]).all().item<bool>());
  }
}

}  // namespace
}  // namespace tessera::ops
