// SPDX-License-Identifier: Apache-2.0
// Attention of every set of instructions, without LibTorch: as kernel_rows_test.cpp.
#include "tessera/ops/cpu/amx_attention.h"
#include "tessera/ops/cpu/vector_attention.h"
#include "tests/ops/softmax_formula.h"

namespace tessera::ops {
namespace {

using vectors::Avx2, vectors::Avx512;

struct OfTiles {
  static int64_t scratch(const AttentionShape& shape) { return amx::attention_scratch(shape); }
  static int64_t backward_scratch(const AttentionShape& shape) {
    return amx::attention_backward_scratch(shape);
  }
  static constexpr auto forward = amx::attention;
  static constexpr auto backward = amx::attention_backward;
};
/// Kernels for attention, the elements in memory, and those that are multiplied.
template <typename SetOf, typename Element, typename Word>
struct Attend : vectors::AttentionKernels<SetOf, Element, Word> {
  using T = Element;
  static const char* obstacle_here() { return obstacle(SetOf(), sizeof(Word) == 2); }
};
template <>
struct Attend<void, uint16_t, void> : OfTiles {
  using T = uint16_t;
  static const char* obstacle_here() { return obstacle_to_tiles(); }
};

template <typename Kernels>
class KernelAttention : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const char* why = Kernels::obstacle_here()) GTEST_SKIP() << why;
  }
};
#ifdef TESSERA_TILES_IN_MEMORY
using Attentions = testing::Types<Attend<void, uint16_t, void>>;
#else
using Attentions = testing::Types<Attend<Avx2, float, float>, Attend<Avx2, uint16_t, float>,
                                  Attend<Avx512, float, float>, Attend<Avx512, uint16_t, float>,
                                  Attend<Avx512, uint16_t, uint16_t>, Attend<void, uint16_t, void>>;
#endif
TYPED_TEST_SUITE(KernelAttention, Attentions);

/// Queries of their own, keys and values of one projection; what the kernels make of them, and the formula.
template <typename Kernels>
struct Case {
  using T = typename Kernels::T;
  static constexpr int64_t kSamples = 2;

  const AttentionShape shape;
  const int64_t row = shape.heads * shape.head_width, all_heads = kSamples * shape.heads;
  Guarded<T> q{kSamples * shape.queries * row}, kv{kSamples * shape.tokens * 2 * row}, out{q.size()},
      gradient{q.size()}, dq{q.size()}, dkv{kv.size()};
  Guarded<float> stats{all_heads * shape.queries * 2};

  explicit Case(const AttentionShape& of, double size_of_queries = 1) : shape(of) {
    fill(q, size_of_queries, 1);
    fill(kv, 1, 2);
    fill(gradient, 1, 3);
  }
  Heads<T> of_queries(Guarded<T>& t) const { return {t.data(), shape.queries * row, row, shape.head_width}; }
  Heads<T> of_tokens(Guarded<T>& t, int64_t part) const {
    return {t.data() + part * row, shape.tokens * 2 * row, 2 * row, shape.head_width};
  }
  void forward(int64_t begin, int64_t end) {
    auto scratch = aligned<uint16_t>(Kernels::scratch(shape));
    Kernels::forward(of_queries(q), of_tokens(kv, 0), of_tokens(kv, 1), shape, begin, end, of_queries(out),
                     stats.data(), scratch.data());
  }
  void backward(int64_t begin, int64_t end) {
    auto scratch = aligned<uint16_t>(Kernels::backward_scratch(shape));
    Kernels::backward(of_queries(q), of_tokens(kv, 0), of_tokens(kv, 1), shape, begin, end,
                      of_queries(gradient), stats.data(), of_queries(dq), of_tokens(dkv, 0),
                      of_tokens(dkv, 1), scratch.data());
  }

  int64_t at_query(int64_t head, int64_t i, int64_t c) const {
    return (head / shape.heads * shape.queries + i) * row + head % shape.heads * shape.head_width + c;
  }
  int64_t at_token(int64_t head, int64_t j, int64_t c, int64_t part) const {
    return ((head / shape.heads * shape.tokens + j) * 2 + part) * row +
           head % shape.heads * shape.head_width + c;
  }
  /// Expects the formula's result, and gradients if there are some.
  void expect_formula(bool gradients, double of_sums) const {
    Exact exact_out = zeros(q.size()), exact_dq = exact_out, exact_dkv = zeros(kv.size());
    const double scale = 1 / std::sqrt(static_cast<double>(shape.head_width));
    for (int64_t head = 0; head < all_heads; ++head) {
      const auto query = [&](int64_t i, int64_t c) { return value(q[at_query(head, i, c)]); };
      const auto key = [&](int64_t j, int64_t c) { return value(kv[at_token(head, j, c, 0)]); };
      const auto val = [&](int64_t j, int64_t c) { return value(kv[at_token(head, j, c, 1)]); };
      const auto of_out = [&](int64_t i, int64_t c) { return value(gradient[at_query(head, i, c)]); };
      Softmax softmax(shape.queries, shape.tokens, shape.head_width, scale, query, key);
      Exact ds = softmax.backward([&](int64_t i, int64_t j) {
        double sum = 0;
        for (int64_t c = 0; c < shape.head_width; ++c) sum += of_out(i, c) * val(j, c);
        return sum;
      });
      for (int64_t i = 0; i < shape.queries; ++i) {
        for (int64_t c = 0; c < shape.head_width; ++c) {
          at(exact_out, at_query(head, i, c)) = softmax.mix(i, c, val);
          for (int64_t j = 0; j < shape.tokens; ++j) {
            const double share = at(ds, i * shape.tokens + j) * scale;
            at(exact_dq, at_query(head, i, c)) += share * key(j, c);
            at(exact_dkv, at_token(head, j, c, 0)) += share * query(i, c);
            at(exact_dkv, at_token(head, j, c, 1)) += at(softmax.p, i * shape.tokens + j) * of_out(i, c);
          }
        }
      }
    }
    expect_near(out, exact_out, "result", of_sums);
    if (!gradients) return;
    expect_near(dq, exact_dq, "queries' gradient", of_sums);
    expect_near(dkv, exact_dkv, "keys' and values' gradient", of_sums);
  }
};

// In bf16 p and the scores' gradient are rounded between two products.
template <typename T>
constexpr double kOfSums = sizeof(T) == 4 ? 5e-5 : 2e-2;

TYPED_TEST(KernelAttention, ValuesAndGradientsAreThoseOfTheFormula) {
  for (const AttentionShape& shape :
       {AttentionShape{1, 1, 1, 1}, AttentionShape{3, 5, 7, 9}, AttentionShape{2, 33, 50, 64},
        AttentionShape{1, 17, 19, 80}, AttentionShape{2, 1, 197, 48}, AttentionShape{1, 40, 640, 16}}) {
    Case<TypeParam> attention(shape);
    attention.forward(0, attention.all_heads);
    attention.backward(0, attention.all_heads);
    attention.expect_formula(true, kOfSums<typename TypeParam::T>);
  }
}

// Scores of some thousands: all but one token have no share.
TYPED_TEST(KernelAttention, LargeScoresAreThoseOfTheFormula) {
  Case<TypeParam> attention({2, 33, 50, 64}, 1000);
  attention.forward(0, attention.all_heads);
  attention.expect_formula(false, 100 * kOfSums<float> + kOfSums<typename TypeParam::T>);
}

TYPED_TEST(KernelAttention, NanStaysInItsQuery) {
  Case<TypeParam> attention({1, 9, 21, 32});
  attention.q[attention.at_query(0, 4, 3)] =
      nearest<typename TypeParam::T>(std::numeric_limits<double>::quiet_NaN());
  attention.forward(0, attention.all_heads);
  for (int64_t i = 0; i < attention.shape.queries; ++i) {
    for (int64_t c = 0; c < attention.shape.head_width; ++c) {
      EXPECT_EQ(std::isnan(value(attention.out[attention.at_query(0, i, c)])), i == 4) << i << ", " << c;
    }
  }
}

TYPED_TEST(KernelAttention, HeadsByThemselvesAreTheSameBits) {
  Case<TypeParam> together({3, 33, 50, 24}), apart({3, 33, 50, 24});
  together.forward(0, together.all_heads);
  together.backward(0, together.all_heads);
  for (int64_t head = apart.all_heads - 1; head >= 0; --head) {
    apart.forward(head, head + 1);
    apart.backward(head, head + 1);
  }
  const auto same = [](const auto& a, const auto& b) {
    return std::memcmp(a.data(), b.data(), sizeof(a[0]) * static_cast<size_t>(a.size())) == 0;
  };
  EXPECT_TRUE(same(together.out, apart.out) && same(together.dq, apart.dq) && same(together.dkv, apart.dkv));
}

}  // namespace
}  // namespace tessera::ops
