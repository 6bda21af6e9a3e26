// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/attention.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "tests/ops/beside_formula.h"
#include "tests/ops/has_kernels.h"

namespace tessera::ops {
namespace {

struct AttentionSizes {
  int64_t batch, queries, tokens, heads, head_width;
};

at::Tensor attention_formula(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  const at::Tensor scores =
      at::matmul(q.transpose(1, 2), k.transpose(1, 2).transpose(2, 3)) / std::sqrt(q.size(3));
  return at::matmul(scores.softmax(-1), v.transpose(1, 2)).transpose(1, 2).flatten(2);
}

class Attention : public ::testing::TestWithParam<std::tuple<AttentionSizes, at::ScalarType>> {};

TEST_P(Attention, ValueAndGradientsAreThoseOfTheFormula) {
  at::manual_seed(2);
  const auto [s, dtype] = GetParam();
  const auto make = [&](int64_t count) {
    return at::randn({s.batch, count, s.heads, s.head_width}).to(dtype).requires_grad_();
  };
  const std::vector<at::Tensor> inputs = {make(s.queries), make(s.tokens), make(s.tokens)};
  const auto exact = exact_copies(inputs);
  const at::Tensor y = attention(inputs[0], inputs[1], inputs[2]);
  const at::Tensor expected = attention_formula(exact[0], exact[1], exact[2]);
  const double tolerance = dtype == at::kFloat ? 2e-5 : 0.02;
  EXPECT_EQ(y.sizes().vec(), (std::vector<int64_t>{s.batch, s.queries, s.heads * s.head_width}));
  EXPECT_EQ(y.scalar_type(), dtype);
  EXPECT_LT(error(y, expected), tolerance);
  const at::Tensor direction = at::randn(y.sizes()).to(dtype);
  y.backward(direction);
  expected.backward(direction.to(at::kDouble));
  for (size_t i = 0; i < 3; ++i) {
    if (s.tokens == 1 && i < 2) {  // one token: the softmax is constant
      EXPECT_LT(inputs[i].grad().abs().max().item<double>(), 0.05) << i;
    } else {
      EXPECT_LT(error(inputs[i].grad(), exact[i].grad()), tolerance) << i;
    }
  }
}

TEST_P(Attention, APackedProjectionGivesTheSame) {
  at::manual_seed(3);
  const auto [s, dtype] = GetParam();
  const int64_t width = s.heads * s.head_width;
  const at::Tensor qkv = at::randn({s.batch, s.tokens, 3 * width}).to(dtype).requires_grad_();
  const at::Tensor other = qkv.detach().clone().requires_grad_();
  const auto parts = other.view({s.batch, s.tokens, 3, s.heads, s.head_width}).unbind(2);
  const at::Tensor y = self_attention(qkv, s.heads), expected = attention(parts[0], parts[1], parts[2]);
  EXPECT_TRUE(at::equal(y, expected));
  const at::Tensor direction = at::randn(y.sizes()).to(dtype);
  y.backward(direction);
  expected.backward(direction);
  EXPECT_TRUE(at::equal(qkv.grad(), other.grad()));
}

TEST_P(Attention, PackedKeysAndValuesGiveTheSame) {
  at::manual_seed(4);
  const auto [s, dtype] = GetParam();
  const int64_t width = s.heads * s.head_width;
  const at::Tensor q = at::randn({s.batch, s.queries, width}).to(dtype).requires_grad_();
  const at::Tensor kv = at::randn({s.batch, s.tokens, 2 * width}).to(dtype).requires_grad_();
  const at::Tensor other_q = q.detach().clone().requires_grad_(),
                   other_kv = kv.detach().clone().requires_grad_();
  const auto parts = other_kv.view({s.batch, s.tokens, 2, s.heads, s.head_width}).unbind(2);
  const at::Tensor y = cross_attention(q, kv, s.heads);
  const at::Tensor expected =
      attention(other_q.view({s.batch, s.queries, s.heads, s.head_width}), parts[0], parts[1]);
  EXPECT_TRUE(at::equal(y, expected));
  const at::Tensor direction = at::randn(y.sizes()).to(dtype);
  y.backward(direction);
  expected.backward(direction);
  EXPECT_TRUE(at::equal(q.grad(), other_q.grad()));
  EXPECT_TRUE(at::equal(kv.grad(), other_kv.grad()));
}

// Whole blocks of 32, parts of them, one query for many tokens, more tokens than the kernels take; heads of
// every number of vectors, whole and not; then more queries than backward sums up at once (224), by one, by
// many, and an odd number.
INSTANTIATE_TEST_SUITE_P(
    Grid, Attention,
    ::testing::Combine(
        ::testing::Values(AttentionSizes{3, 16, 16, 4, 32}, AttentionSizes{2, 64, 64, 2, 64},
                          AttentionSizes{2, 197, 197, 3, 64}, AttentionSizes{2, 1, 50, 2, 16},
                          AttentionSizes{1, 1, 1, 1, 1}, AttentionSizes{2, 33, 7, 3, 20},
                          AttentionSizes{1, 65, 31, 2, 80}, AttentionSizes{1, 700, 700, 1, 16},
                          AttentionSizes{5, 197, 197, 2, 16}, AttentionSizes{3, 5, 5, 2, 32},
                          AttentionSizes{2, 257, 257, 2, 80}, AttentionSizes{1, 577, 577, 2, 64},
                          AttentionSizes{2, 63, 129, 2, 48}, AttentionSizes{2, 97, 99, 2, 96},
                          AttentionSizes{2, 17, 40, 2, 33}, AttentionSizes{1, 640, 640, 1, 24},
                          AttentionSizes{2, 50, 50, 1, 160}, AttentionSizes{2, 196, 196, 2, 64},
                          AttentionSizes{1, 256, 256, 2, 128}, AttentionSizes{2, 225, 40, 2, 64},
                          AttentionSizes{1, 449, 3, 2, 32}, AttentionSizes{1, 2, 640, 3, 64}),
        ::testing::Values(at::kFloat, at::kBFloat16)));

TEST(Attention, ABroadcastQueryGetsTheSumOfItsGradients) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor query = at::randn({1, 1, 2, 16}).to(dtype).requires_grad_();
    const at::Tensor k = at::randn({4, 9, 2, 16}).to(dtype), v = at::randn({4, 9, 2, 16}).to(dtype);
    attention(query.expand({4, -1, -1, -1}), k, v).sum().backward();
    const auto exact = exact_copies({query});
    attention_formula(exact[0].expand({4, -1, -1, -1}), k.to(at::kDouble), v.to(at::kDouble))
        .sum()
        .backward();
    EXPECT_LT(error(query.grad(), exact[0].grad()), dtype == at::kFloat ? 2e-5 : 0.03);
  }
}

// The result of packed projections, then their gradient.
std::vector<at::Tensor> value_and_gradient(const at::Tensor& qkv_given, int threads) {
  at::set_num_threads(threads);
  const at::Tensor qkv = qkv_given.detach().clone().requires_grad_();
  const at::Tensor y = self_attention(qkv, 3);
  y.backward(y.detach().sin());
  return {y.detach(), qkv.grad()};
}

class AttentionBits : public ::testing::TestWithParam<std::tuple<int64_t, int64_t, at::ScalarType>> {
 protected:
  void TearDown() override { at::set_num_threads(threads_); }
  static at::Tensor projections() {
    at::manual_seed(8);
    const auto [tokens, head_width, dtype] = GetParam();
    return at::randn({7, tokens, 3 * 3 * head_width}).to(dtype);
  }

 private:
  int threads_ = at::get_num_threads();
};

// The same bits from the kernels. LibTorch's products promise none: MKL's on an Intel CPU depended on the
// threads with heads of 80.
bool same(const at::Tensor& found, const at::Tensor& expected) {
  const bool kernels = has_kernels(expected.scalar_type());
  const double rounding = expected.scalar_type() == at::kFloat ? 1e-5 : 0.016;
  return kernels ? at::equal(found, expected) : at::allclose(found, expected, rounding, rounding);
}

TEST_P(AttentionBits, DoNotDependOnThreads) {
  const at::Tensor qkv = projections();
  const auto expected = value_and_gradient(qkv, 1);
  for (const int threads : {2, 3, 4}) {
    const auto found = value_and_gradient(qkv, threads);
    EXPECT_TRUE(same(found[0], expected[0])) << threads;
    EXPECT_TRUE(same(found[1], expected[1])) << threads;
  }
}

TEST_P(AttentionBits, OfAnImageDoNotDependOnTheBatch) {
  const at::Tensor qkv = projections();
  const auto all = value_and_gradient(qkv, 2);
  for (const int64_t image : {0, 4, 6}) {
    const auto one = value_and_gradient(qkv.narrow(0, image, 1), 1);
    EXPECT_TRUE(same(all[0].narrow(0, image, 1), one[0])) << image;
    EXPECT_TRUE(same(all[1].narrow(0, image, 1), one[1])) << image;
  }
}

INSTANTIATE_TEST_SUITE_P(Grid, AttentionBits,
                         ::testing::Combine(::testing::Values(1, 5, 197), ::testing::Values(16, 64, 80),
                                            ::testing::Values(at::kFloat, at::kBFloat16)));

// Scores of hundreds must not overflow, and a NaN must not vanish.
TEST(Attention, LargeScoresAndNan) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor qkv = (at::randn({2, 16, 3 * 32}) * 100).to(dtype);
    EXPECT_TRUE(at::isfinite(self_attention(qkv, 1)).all().item<bool>());
    qkv[0][3][5] = std::numeric_limits<float>::quiet_NaN();
    const at::Tensor y = self_attention(qkv, 1);
    EXPECT_TRUE(at::isnan(y[0][3]).any().item<bool>());
    EXPECT_TRUE(at::isfinite(y[1]).all().item<bool>());
    qkv[1][7][32] = std::numeric_limits<float>::quiet_NaN();  // of a key: every query sees it
    EXPECT_TRUE(at::isnan(self_attention(qkv, 1)[1]).all().item<bool>());
  }
}

}  // namespace
}  // namespace tessera::ops
