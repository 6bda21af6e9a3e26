// Softmax over rows of scores and its gradient, once for words of bf16 and fp32 (avx512_product.h). Private
// to the attention kernels; like avx512_math.h without any standard header.
#pragma once

#include "tessera/ops/attention_heads.h"
#include "tessera/ops/avx512_product.h"

namespace tessera::ops::avx512 {
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

inline __m512 exp_for(const float*, __m512 x) { return precise_exp(x); }
inline __m512 exp_for(const uint16_t*, __m512 x) { return exp2_for_bf16(x); }

// Two vectors side by side; adds them to `sum`, as they are stored.
inline __m512 put_pair(float* p, __m512 a, __m512 b, __m512 sum) {
  _mm512_storeu_ps(p, a);
  _mm512_storeu_ps(p + 16, b);
  return _mm512_add_ps(sum, _mm512_add_ps(a, b));
}
#if defined(__AVX512BF16__)
inline __m512 put_pair(uint16_t* p, __m512 a, __m512 b, __m512 sum) {
  const __m512bh both = _mm512_cvtne2ps_pbh(b, a);
  _mm512_storeu_si512(p, reinterpret_cast<__m512i>(both));
  const __m512i ones = _mm512_set1_epi16(0x3F80);
  return _mm512_dpbf16_ps(sum, both, reinterpret_cast<__m512bh>(ones));
}
#endif

// The largest score of each row times `factor`: the first of the row's stats. Of all rows before any is
// worked on: a number is long in coming out of a vector, and other rows fill the time. Calls each_row(i)
// before row i.
template <typename EachRow>
inline void put_maxima(const float* s, int64_t rows, int64_t tokens, float factor, float* stats,
                       const EachRow& each_row) {
  const __m512 lowest = _mm512_set1_ps(-3.4e38F);
  const int64_t last = (tokens - 1) / 16 * 16;
  const __mmask16 mask = first_lanes(tokens - last);
  for (int64_t i = 0; i < rows; ++i, s += kLine) {
    each_row(i);
    __m512 most = _mm512_max_ps(_mm512_mask_loadu_ps(lowest, mask, s + last), lowest);
    for (int64_t j = 0; j < last; j += 16) most = _mm512_max_ps(_mm512_loadu_ps(s + j), most);
    stats[2 * i] = factor * _mm512_reduce_max_ps(most);
  }
}

// One row: p = e^(score - max), zero from `tokens` to the end of its last pair of vectors; `factor`: a
// score's, in kExponentUnit. stats: given max, puts 1 / sum.
template <typename Word>
inline void softmax_row(const float* s, int64_t tokens, float factor, Word* p, float* stats) {
  const __m512 by = _mm512_set1_ps(factor), top = _mm512_set1_ps(stats[0]);
  const auto at = [&](int64_t j) { return exp_for(p, _mm512_fmsub_ps(_mm512_loadu_ps(s + j), by, top)); };
  const int64_t whole = tokens / 32 * 32;
  __m512 sum = _mm512_setzero_ps();
  for (int64_t j = 0; j < whole; j += 32) sum = put_pair(p + j, at(j), at(j + 16), sum);
  if (whole < tokens) {
    const __m512 a = _mm512_maskz_mov_ps(first_lanes(tokens - whole), at(whole));
    const __m512 b = tokens - whole > 16
                         ? _mm512_maskz_mov_ps(first_lanes(tokens - whole - 16), at(whole + 16))
                         : _mm512_setzero_ps();
    sum = put_pair(p + whole, a, b, sum);
  }
  stats[1] = 1.0F / _mm512_reduce_add_ps(sum);
}

// One row of backward: scores become p again, with stats; returns sum(p * dp). Zero past `tokens`.
template <typename Word>
inline float softmax_again_row(float* s, const float* dp, int64_t tokens, float factor, const float* stats) {
  const __m512 by = _mm512_set1_ps(factor), top = _mm512_set1_ps(stats[0]);
  const __m512 share = _mm512_set1_ps(stats[1]);
  const auto at = [&](int64_t j) {
    return exp_for(static_cast<const Word*>(nullptr), _mm512_fmsub_ps(_mm512_loadu_ps(s + j), by, top));
  };
  const int64_t last = (tokens - 1) / 16 * 16;
  __m512 sum = _mm512_setzero_ps();
  for (int64_t j = 0; j < last; j += 16) {
    const __m512 p = _mm512_mul_ps(at(j), share);
    sum = _mm512_fmadd_ps(p, _mm512_loadu_ps(dp + j), sum);
    _mm512_storeu_ps(s + j, p);
  }
  const __m512 p = _mm512_maskz_mul_ps(first_lanes(tokens - last), at(last), share);
  _mm512_storeu_ps(s + last, p);
  return _mm512_reduce_add_ps(_mm512_fmadd_ps(p, _mm512_loadu_ps(dp + last), sum));
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
    const __m512 sum = _mm512_set1_ps(sums[row - i]);
    for (int64_t j = row * kLine; j < row * kLine + tokens; j += 16) {
      const __m512 slope = _mm512_sub_ps(_mm512_loadu_ps(dp + j), sum);
      _mm512_storeu_ps(dp + j, _mm512_mul_ps(slope, _mm512_loadu_ps(p + j)));
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
  const __m512i pairs = _mm512_load_si512(kPairs);
  const __mmask16 second = i + 1 < rows ? __mmask16(0xFFFF) : __mmask16(0);
  const __m512 sum = _mm512_set1_ps(sums[0]), second_sum = _mm512_set1_ps(sums[1]);
  p += i * kLine, dp += i * kLine;
  float *row = to.ds_rows + i * kWordLine<uint16_t>, *next_row = row + kWordLine<uint16_t>;
  float *p_column = to.p_columns + i / 2 * to.line, *ds_column = to.ds_columns + i / 2 * to.line;
  for (int64_t j = 0; j < tokens; j += 16) {
    const __m512 p0 = _mm512_loadu_ps(p + j), p1 = _mm512_maskz_loadu_ps(second, p + kLine + j);
    const __m512 slope0 = _mm512_sub_ps(_mm512_loadu_ps(dp + j), sum);
    const __m512 slope1 = _mm512_sub_ps(_mm512_loadu_ps(dp + kLine + j), second_sum);
    const __m512 ds0 = _mm512_mul_ps(p0, slope0), ds1 = _mm512_maskz_mul_ps(second, p1, slope1);
    const auto of_p = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(p1, p0));
    const auto of_s = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(ds1, ds0));
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
}  // namespace tessera::ops::avx512
