// SPDX-License-Identifier: Apache-2.0
// Softmax over rows of scores and its gradient, once for words of bf16 and fp32 (vector_product.h). Private
// to the attention kernels; like vectors.h without any standard header.
#pragma once

#include "tessera/ops/cpu/attention_heads.h"
#include "tessera/ops/cpu/vector_product.h"

namespace tessera::ops::vectors {
namespace {

// Words between rows of scores, and of probabilities: more than the most tokens, and an odd number of cache
// lines, which spreads a column over the cache.
constexpr int64_t kLine = 656;
static_assert(kLine >= kMostTokens && kLine / 16 % 2 == 1 && kLine % 16 == 0);
template <typename Word>
constexpr int64_t kWordLine = sizeof(Word) == 4 ? kLine : 336;

// Exponents are in these units: those of precise_exp() and exp2_for_bf16().
template <typename Word>
constexpr float kExponentUnit = sizeof(Word) == 4 ? 1.0F : 1.44269504F;

inline Floats exp_for(const float*, Floats x) { return precise_exp(x); }
inline Floats exp_for(const uint16_t*, Floats x) { return exp2_for_bf16(x); }

// Two vectors side by side; adds them to `sum`, as they are stored.
inline Floats put_pair(float* p, Floats a, Floats b, Floats sum) {
  store(p, a);
  store(p + 16, b);
  return sum + (a + b);
}
#if defined(__AVX512BF16__)
inline Floats put_pair(uint16_t* p, Floats a, Floats b, Floats sum) {
  const __m512bh both = _mm512_cvtne2ps_pbh(b, a);
  _mm512_storeu_si512(p, reinterpret_cast<Words>(both));
  const Words ones = _mm512_set1_epi16(0x3F80);
  return _mm512_dpbf16_ps(sum, both, reinterpret_cast<__m512bh>(ones));
}
#endif

// The largest score of each row times `factor`: the first of the row's stats. Of all rows before any is
// worked on: a number is long in coming out of a vector, and other rows fill the time. Calls each_row(i)
// before row i.
template <typename EachRow>
inline void put_maxima(const float* s, int64_t rows, int64_t tokens, float factor, float* stats,
                       const EachRow& each_row) {
  const Floats lowest = broadcast(-3.4e38F);
  const int64_t last = (tokens - 1) / 16 * 16;
  const Mask mask = first_lanes(tokens - last);
  for (int64_t i = 0; i < rows; ++i, s += kLine) {
    each_row(i);
    Floats most = max(choose(mask, load(s + last, mask), lowest), lowest);
    for (int64_t j = 0; j < last; j += 16) most = max(load(s + j), most);
    stats[2 * i] = factor * reduce_max(most);
  }
}

// One row: p = e^(score - max), zero from `tokens` to the end of its last pair of vectors; `factor`: a
// score's, in kExponentUnit. stats: given max, puts 1 / sum.
template <typename Word>
inline void softmax_row(const float* s, int64_t tokens, float factor, Word* p, float* stats) {
  const Floats by = broadcast(factor), top = broadcast(stats[0]);
  const auto at = [&](int64_t j) { return exp_for(p, fmsub(load(s + j), by, top)); };
  const int64_t whole = tokens / 32 * 32;
  Floats sum = zeros();
  for (int64_t j = 0; j < whole; j += 32) sum = put_pair(p + j, at(j), at(j + 16), sum);
  if (whole < tokens) {
    const Floats a = kept(first_lanes(tokens - whole), at(whole));
    const Floats b = tokens - whole > 16 ? kept(first_lanes(tokens - whole - 16), at(whole + 16)) : zeros();
    sum = put_pair(p + whole, a, b, sum);
  }
  stats[1] = 1.0F / reduce_add(sum);
}

// One row of backward: scores become p again, with stats; returns sum(p * dp). Zero past `tokens`.
template <typename Word>
inline float softmax_again_row(float* s, const float* dp, int64_t tokens, float factor, const float* stats) {
  const Floats by = broadcast(factor), top = broadcast(stats[0]);
  const Floats share = broadcast(stats[1]);
  const auto at = [&](int64_t j) {
    return exp_for(static_cast<const Word*>(nullptr), fmsub(load(s + j), by, top));
  };
  const int64_t last = (tokens - 1) / 16 * 16;
  Floats sum = zeros();
  for (int64_t j = 0; j < last; j += 16) {
    const Floats p = at(j) * share;
    sum = fmadd(p, load(dp + j), sum);
    store(s + j, p);
  }
  const Floats p = kept(first_lanes(tokens - last), at(last) * share);
  store(s + last, p);
  return reduce_add(fmadd(p, load(dp + last), sum));
}

// Where p and ds, the gradient of the scores but for their scale, go as factors on the left: `rows` for sums
// over tokens, kWordLine words apart; `columns` for sums over queries, whose words are `line` apart.
struct Factors {
  float *ds_rows, *p_columns, *ds_columns;
  int64_t line;
};

// Rows i and i + 1, of `rows`, as factors: ds = p * (dp - sum(p * dp)). In fp32 p is in its place and ds
// takes dp's.
inline void put_factors(const float*, const float* p, float* dp, int64_t i, int64_t rows, int64_t tokens,
                        const float* sums, const Factors&) {
  for (int64_t row = i; row < min_of(i + 2, rows); ++row) {
    const Floats sum = broadcast(sums[row - i]);
    for (int64_t j = row * kLine; j < row * kLine + tokens; j += 16) {
      const Floats slope = load(dp + j) - sum;
      store(dp + j, slope * load(p + j));
    }
  }
}

#if defined(__AVX512BF16__)
// In bf16 the words of a column are pairs of rows; a row without another has zeros beside it.
inline void put_factors(const uint16_t*, const float* p, const float* dp, int64_t i, int64_t rows,
                        int64_t tokens, const float* sums, const Factors& to) {
  alignas(64) static constexpr uint16_t kPairs[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                      21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                      11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const Words pairs = _mm512_load_si512(kPairs);
  const Mask second = i + 1 < rows ? Mask(0xFFFF) : Mask(0);
  const Floats sum = broadcast(sums[0]), second_sum = broadcast(sums[1]);
  p += i * kLine, dp += i * kLine;
  float *row = to.ds_rows + i * kWordLine<uint16_t>, *next_row = row + kWordLine<uint16_t>;
  float *p_column = to.p_columns + i / 2 * to.line, *ds_column = to.ds_columns + i / 2 * to.line;
  for (int64_t j = 0; j < tokens; j += 16) {
    const Floats p0 = load(p + j), p1 = load(p + kLine + j, second);
    const Floats slope0 = load(dp + j) - sum;
    const Floats slope1 = load(dp + kLine + j) - second_sum;
    const Floats ds0 = p0 * slope0, ds1 = kept(second, p1 * slope1);
    const auto of_p = reinterpret_cast<Words>(_mm512_cvtne2ps_pbh(p1, p0));
    const auto of_s = reinterpret_cast<Words>(_mm512_cvtne2ps_pbh(ds1, ds0));
    _mm512_storeu_si512(p_column + j, _mm512_permutexvar_epi16(pairs, of_p));
    _mm512_storeu_si512(ds_column + j, _mm512_permutexvar_epi16(pairs, of_s));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(row + j / 2), _mm512_castsi512_si256(of_s));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(next_row + j / 2), _mm512_extracti64x4_epi64(of_s, 1));
  }
}
#endif

// Rows of scores and of dp as factors; calls each_row(i) before row i. Factors are made two rows behind
// the sums, which are long in coming out of their vectors.
template <typename Word, typename EachRow>
inline void softmax_backward(float* s, float* dp, int64_t rows, int64_t tokens, float factor,
                             const float* stats, const Factors& to, const EachRow& each_row) {
  float sums[4] = {};
  for (int64_t i = 0; i < rows + 2; i += 2) {
    for (int64_t row = i; row < min_of(i + 2, rows); ++row) {
      each_row(row);
      sums[row % 4] =
          softmax_again_row<Word>(s + row * kLine, dp + row * kLine, tokens, factor, stats + 2 * row);
    }
    if (i > 0) {
      put_factors(static_cast<const Word*>(nullptr), s, dp, i - 2, rows, tokens, sums + (i - 2) % 4, to);
    }
  }
}

}  // namespace
}  // namespace tessera::ops::vectors
