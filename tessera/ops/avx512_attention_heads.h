// Attention on AVX-512, written once for bf16 and fp32. Private to the two files that compile it; like
// avx512_math.h without any standard header.
//
// A head at a time: k and v are laid out for products once, then queries come in blocks whose scores,
// probabilities and their gradients stay in the cache.
#pragma once

#include "tessera/ops/attention_heads.h"
#include "tessera/ops/avx512_product.h"

namespace tessera::ops::avx512 {
namespace {

// Queries of a block: with 200 tokens and fp32 their scores fit the L1 cache; backward keeps two such
// matrices in the L2 cache and wants longer sums.
constexpr int64_t kBlock = 32, kBackwardBlock = 64;

// Words between rows of scores, and of probabilities: more than the most tokens, and an odd number of cache
// lines, which spreads a column over the cache.
constexpr int64_t kLine = 656;
static_assert(kLine >= kMostTokens && kLine / 16 % 2 == 1 && kLine % 16 == 0);
template <typename Element>
constexpr int64_t kWordLine = sizeof(Element) == 4 ? kLine : 336;

// Hands out pieces of scratch, aligned to cache lines.
struct Scratch {
  float* next;
  float* take(int64_t words) {
    float* piece = next;
    next += lanes(words);
    return piece;
  }
};

// Block `index` of queries, of nearly one size.
struct Block {
  int64_t first, rows;
};
inline int64_t blocks_of(int64_t queries, int64_t most) { return (queries + most - 1) / most; }
inline Block block_of(int64_t queries, int64_t blocks, int64_t index) {
  // (Even: bf16 pairs neighbours.)
  const auto begin = [&](int64_t i) { return min_of((queries * i / blocks + 1) / 2 * 2, queries); };
  return {begin(index), begin(index + 1) - begin(index)};
}

// bf16 has fewer digits than the quick function.
inline __m512 exp_for(const float*, __m512 x) { return precise_exp(x); }
inline __m512 exp_for(const uint16_t*, __m512 x) { return exp(x); }

inline __mmask16 lanes_of(int64_t tokens, int64_t j) {
  return j < tokens ? first_lanes(tokens - j) : __mmask16(0);
}

// One row: p = e^(scale * s - max), zero from `tokens` to the end of its last vector; stats: max, 1 / sum. p
// may be s.
template <typename Element>
inline void softmax_row(const float* s, int64_t tokens, float scale, Element* p, float* stats) {
  const __m512 factor = _mm512_set1_ps(scale), lowest = _mm512_set1_ps(-3.4e38F);
  __m512 most = lowest;
  for (int64_t j = 0; j < tokens; j += 16) {
    most = _mm512_max_ps(_mm512_mask_loadu_ps(lowest, first_lanes(tokens - j), s + j), most);
  }
  const float top = scale * _mm512_reduce_max_ps(most);
  __m512 sum = _mm512_setzero_ps();
  for (int64_t j = 0; j < tokens; j += 16) {
    const __m512 x = _mm512_fmsub_ps(_mm512_loadu_ps(s + j), factor, _mm512_set1_ps(top));
    const __m512 kept = _mm512_maskz_mov_ps(first_lanes(tokens - j), exp_for(p, x));
    sum = _mm512_add_ps(sum, kept);
    store(p + j, kept);
  }
  stats[0] = top;
  stats[1] = 1.0F / _mm512_reduce_add_ps(sum);
}

// One row: s becomes p again, with stats, and dp the gradient of the scores, p * (dp - sum(p * dp)) * scale;
// both zero past `tokens`.
template <typename Element>
inline void softmax_backward_row(float* s, float* dp, int64_t tokens, float scale, const float* stats) {
  const __m512 factor = _mm512_set1_ps(scale), top = _mm512_set1_ps(stats[0]);
  const __m512 share = _mm512_set1_ps(stats[1]);
  __m512 sum = _mm512_setzero_ps();
  for (int64_t j = 0; j < tokens; j += 16) {
    const __m512 x = _mm512_fmsub_ps(_mm512_loadu_ps(s + j), factor, top);
    const __m512 e = exp_for(static_cast<const Element*>(nullptr), x);
    const __m512 kept = _mm512_maskz_mul_ps(first_lanes(tokens - j), e, share);
    sum = _mm512_fmadd_ps(kept, _mm512_loadu_ps(dp + j), sum);
    _mm512_storeu_ps(s + j, kept);
  }
  const __m512 mean = _mm512_set1_ps(_mm512_reduce_add_ps(sum));
  for (int64_t j = 0; j < tokens; j += 16) {
    const __m512 slope = _mm512_mul_ps(_mm512_sub_ps(_mm512_loadu_ps(dp + j), mean), factor);
    _mm512_storeu_ps(dp + j, _mm512_mul_ps(slope, _mm512_loadu_ps(s + j)));
  }
}

// A block of p or ds as factors on the left: `rows` for sums over tokens, `columns` for sums over queries.
struct Factors {
  const float *rows, *columns;
};

inline Factors factors_of(const float*, float* x, int64_t, int64_t, float*, float*) { return {x, x}; }

#if defined(__AVX512BF16__)
// In bf16 the words of a column are pairs of rows.
inline Factors factors_of(const uint16_t*, float* x, int64_t rows, int64_t tokens, float* by_rows,
                          float* by_columns) {
  for (int64_t i = 0; i < rows; i += 2) {
    const float *upper = x + i * kLine, *lower = upper + kLine;
    float *row = by_rows + i * kWordLine<uint16_t>, *column = by_columns + i / 2 * kLine;
    for (int64_t j = 0; j < tokens; j += 16) {
      const auto even = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(_mm512_loadu_ps(upper + j)));
      const auto odd = i + 1 < rows
                           ? reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(_mm512_loadu_ps(lower + j)))
                           : _mm256_setzero_si256();
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(row + j / 2), even);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(row + kWordLine<uint16_t> + j / 2), odd);
      const __m512i high = _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16);
      _mm512_storeu_si512(column + j, _mm512_or_si512(_mm512_cvtepu16_epi32(even), high));
    }
  }
  return {by_rows, by_columns};
}
#endif

// Rows of c [rows, lanes(width)], each times its factor (the second of a row's stats; null: 1).
template <typename Element>
inline void put_result(const float* c, int64_t rows, int64_t width, Element* out, int64_t out_row,
                       const float* stats) {
  const int64_t c_row = lanes(width);
  for (int64_t i = 0; i < rows; ++i) {
    const __m512 factor = _mm512_set1_ps(stats != nullptr ? stats[2 * i + 1] : 1.0F);
    for (int64_t j = 0; j < width; j += 16) {
      const __m512 result = _mm512_mul_ps(factor, _mm512_loadu_ps(c + i * c_row + j));
      store(out + i * out_row + j, first_lanes(width - j), result);
    }
  }
}

template <typename Element>
inline void attend(const Heads<Element>& q, const Heads<Element>& k, const Heads<Element>& v,
                   const AttentionShape& shape, int64_t begin, int64_t end, const Heads<Element>& out,
                   float* stats, uint16_t* scratch) {
  const int64_t tokens = shape.tokens, width = shape.head_width, line = lanes(tokens), columns = lanes(width);
  const int64_t blocks = blocks_of(shape.queries, kBlock), width_words = words<Element>(width);
  Scratch memory{reinterpret_cast<float*>(scratch)};
  float *keys = memory.take(width_words * line), *values = memory.take(words<Element>(tokens) * columns);
  float *query = memory.take(width_words * kBlock), *scores = memory.take(kBlock * kLine);
  float *p = memory.take(kBlock * kLine), *mixed = memory.take(kBlock * columns);
  for (int64_t index = begin; index < end; ++index) {
    put_transposed(head_at(k, shape, index), k.token_step, tokens, width, keys);
    put_rows(head_at(v, shape, index), v.token_step, tokens, width, values);
    for (int64_t block = 0; block < blocks; ++block) {
      const auto [first, rows] = block_of(shape.queries, blocks, block);
      float* block_stats = stats + 2 * (index * shape.queries + first);
      put_transposed(head_at(q, shape, index) + first * q.token_step, q.token_step, rows, width, query);
      product<Element, 1>(rows, line, {query, lanes(rows)}, {keys, line, width_words},
                          {scores, kLine, false});
      for (int64_t i = 0; i < rows; ++i) {
        softmax_row(scores + i * kLine, tokens, scale_of(shape),
                    reinterpret_cast<Element*>(p + i * kWordLine<Element>), block_stats + 2 * i);
      }
      product<Element, kWordLine<Element>>(rows, columns, {p, 1}, {values, columns, words<Element>(tokens)},
                                           {mixed, columns, false});
      put_result(mixed, rows, width, head_at(out, shape, index) + first * out.token_step, out.token_step,
                 block_stats);
    }
  }
}

template <typename Element>
inline void attend_backward(const Heads<Element>& q, const Heads<Element>& k, const Heads<Element>& v,
                            const AttentionShape& shape, int64_t begin, int64_t end,
                            const Heads<Element>& gradient, const float* stats, const Heads<Element>& dq,
                            const Heads<Element>& dk, const Heads<Element>& dv, uint16_t* scratch) {
  const int64_t tokens = shape.tokens, width = shape.head_width, line = lanes(tokens), columns = lanes(width);
  const int64_t blocks = blocks_of(shape.queries, kBackwardBlock), width_words = words<Element>(width);
  Scratch memory{reinterpret_cast<float*>(scratch)};
  float *keys_t = memory.take(width_words * line), *values_t = memory.take(width_words * line);
  float* keys = memory.take(words<Element>(tokens) * columns);
  float *query_t = memory.take(width_words * kBackwardBlock),
        *slope_t = memory.take(width_words * kBackwardBlock);
  float *query = memory.take(kBackwardBlock * columns), *slope = memory.take(kBackwardBlock * columns);
  float *scores = memory.take(kBackwardBlock * kLine), *dp = memory.take(kBackwardBlock * kLine);
  float *p_rows = memory.take(kBackwardBlock * kLine), *p_columns = memory.take(kBackwardBlock * kLine);
  float *ds_rows = memory.take(kBackwardBlock * kLine), *ds_columns = memory.take(kBackwardBlock * kLine);
  float *of_q = memory.take(kBackwardBlock * columns), *of_k = memory.take(tokens * columns);
  float* of_v = memory.take(tokens * columns);
  constexpr const Element* kElement = nullptr;
  for (int64_t index = begin; index < end; ++index) {
    put_transposed(head_at(k, shape, index), k.token_step, tokens, width, keys_t);
    put_transposed(head_at(v, shape, index), v.token_step, tokens, width, values_t);
    put_rows(head_at(k, shape, index), k.token_step, tokens, width, keys);
    for (int64_t block = 0; block < blocks; ++block) {
      const auto [first, rows] = block_of(shape.queries, blocks, block);
      const Element* q_block = head_at(q, shape, index) + first * q.token_step;
      const Element* gradient_block = head_at(gradient, shape, index) + first * gradient.token_step;
      put_transposed(q_block, q.token_step, rows, width, query_t);
      put_transposed(gradient_block, gradient.token_step, rows, width, slope_t);
      put_rows(q_block, q.token_step, rows, width, query);
      put_rows(gradient_block, gradient.token_step, rows, width, slope);
      product<Element, 1>(rows, line, {query_t, lanes(rows)}, {keys_t, line, width_words},
                          {scores, kLine, false});
      product<Element, 1>(rows, line, {slope_t, lanes(rows)}, {values_t, line, width_words},
                          {dp, kLine, false});
      for (int64_t i = 0; i < rows; ++i) {
        softmax_backward_row<Element>(scores + i * kLine, dp + i * kLine, tokens, scale_of(shape),
                                      stats + 2 * (index * shape.queries + first + i));
      }
      const Factors of_p = factors_of(kElement, scores, rows, tokens, p_rows, p_columns);
      const Factors of_s = factors_of(kElement, dp, rows, tokens, ds_rows, ds_columns);
      product<Element, kWordLine<Element>>(rows, columns, {of_s.rows, 1},
                                           {keys, columns, words<Element>(tokens)}, {of_q, columns, false});
      put_result<Element>(of_q, rows, width, head_at(dq, shape, index) + first * dq.token_step, dq.token_step,
                          nullptr);
      const int64_t row_words = words<Element>(rows);
      product<Element, 1>(tokens, columns, {of_p.columns, kLine}, {slope, columns, row_words},
                          {of_v, columns, block != 0});
      product<Element, 1>(tokens, columns, {of_s.columns, kLine}, {query, columns, row_words},
                          {of_k, columns, block != 0});
    }
    put_result<Element>(of_v, tokens, width, head_at(dv, shape, index), dv.token_step, nullptr);
    put_result<Element>(of_k, tokens, width, head_at(dk, shape, index), dk.token_step, nullptr);
  }
}

}  // namespace
}  // namespace tessera::ops::avx512
