// Attention on AVX-512, written once for bf16 and fp32. Private to the two files that compile it; like
// avx512_math.h without any standard header.
//
// A head at a time: k and v are laid out for products once, then queries come in blocks whose scores,
// probabilities and their gradients stay in the cache. Meanwhile the next head comes into it.
#pragma once

#include "tessera/ops/attention_heads.h"
#include "tessera/ops/avx512_product.h"
#include "tessera/ops/avx512_softmax.h"

namespace tessera::ops::avx512 {
namespace {

// Queries of a block: with 200 tokens their scores fit the L1 cache.
constexpr int64_t kBlock = 32;

// Backward: queries of a block, and those over which the gradients of k and v are summed up at once; in fp32
// the factors of such a sum are the scores themselves, in bf16 copies half as large.
template <typename Element>
constexpr int64_t kBackwardBlock = sizeof(Element) == 4 ? 64 : 32;
template <typename Element>
constexpr int64_t kGroup = sizeof(Element) == 4 ? 64 : 224;

// Hands out pieces of scratch, aligned to cache lines, or, without data, counts their words.
struct Scratch {
  float* data;
  int64_t used = 0;
  float* take(int64_t words) {
    float* piece = data != nullptr ? data + used : nullptr;
    used += lanes(words);
    return piece;
  }
};

// Part `index` of queries, of nearly one size.
struct Part {
  int64_t first, rows;
};
inline int64_t parts_of(int64_t queries, int64_t most) { return (queries + most - 1) / most; }
inline Part part_of(int64_t queries, int64_t parts, int64_t index) {
  // (Even: bf16 pairs neighbours.)
  const auto begin = [&](int64_t i) { return min_of((queries * i / parts + 1) / 2 * 2, queries); };
  return {begin(index), begin(index + 1) - begin(index)};
}

// Rows of a head that are needed soon, asked for some at a time. They lie apart by the width of all heads,
// which no CPU foresees.
template <typename Element>
struct Ahead {
  const Element* row;
  int64_t step, rows, width;

  Ahead(const Heads<Element>& x, const AttentionShape& shape, int64_t index, int64_t end, int64_t count)
      : row(head_at(x, shape, index)),
        step(x.token_step),
        rows(index < end ? count : 0),
        width(shape.head_width) {}

  void ask(int64_t some) {
    for (; some > 0 && rows > 0; --some, --rows, row += step) {
      for (int64_t j = 0; j < width; j += 64 / static_cast<int64_t>(sizeof(Element))) {
        _mm_prefetch(reinterpret_cast<const char*>(row + j), _MM_HINT_T1);
      }
    }
  }
};

// Rows of c [rows, lanes(width)], each times `factor` and times the second of its stats, if there are any.
template <typename Element>
inline void put_result(const float* c, int64_t rows, int64_t width, float factor, const float* stats,
                       Element* out, int64_t out_row) {
  const int64_t c_row = lanes(width);
  for (int64_t i = 0; i < rows; ++i) {
    const __m512 by = _mm512_set1_ps(stats != nullptr ? stats[2 * i + 1] * factor : factor);
    for (int64_t j = 0; j < width; j += 16) {
      const __m512 result = _mm512_mul_ps(by, _mm512_loadu_ps(c + i * c_row + j));
      store(out + i * out_row + j, first_lanes(width - j), result);
    }
  }
}

template <typename Element>
struct Memory {
  float *keys, *values, *query, *scores, *p, *mixed;

  Memory(const AttentionShape& s, Scratch& scratch) {
    const int64_t width_words = words<Element>(s.head_width), columns = lanes(s.head_width);
    keys = scratch.take(width_words * lanes(s.tokens));
    values = scratch.take(words<Element>(s.tokens) * columns);
    query = scratch.take(width_words * kBlock);
    scores = scratch.take(kBlock * kLine);
    p = scratch.take(kBlock * kWordLine<Element>);
    mixed = scratch.take(kBlock * columns);
  }
};

template <typename Element>
inline void attend(const Heads<Element>& q, const Heads<Element>& k, const Heads<Element>& v,
                   const AttentionShape& shape, int64_t begin, int64_t end, const Heads<Element>& out,
                   float* stats, uint16_t* scratch) {
  const int64_t tokens = shape.tokens, width = shape.head_width, line = lanes(tokens), columns = lanes(width);
  const int64_t blocks = parts_of(shape.queries, kBlock), width_words = words<Element>(width);
  const int64_t tokens_a_query = parts_of(tokens, shape.queries);
  const float factor = kExponentUnit<Element> * scale_of(shape);
  Scratch pieces{reinterpret_cast<float*>(scratch)};
  const Memory<Element> m(shape, pieces);
  for (int64_t index = begin; index < end; ++index) {
    const Element* q_head = head_at(q, shape, index);
    Element* out_head = head_at(out, shape, index);
    Ahead<Element> next_q(q, shape, index + 1, end, shape.queries), next_k(k, shape, index + 1, end, tokens);
    Ahead<Element> next_v(v, shape, index + 1, end, tokens), to_out(out, shape, index, end, shape.queries);
    put_transposed(head_at(k, shape, index), k.token_step, tokens, width, m.keys);
    put_rows(head_at(v, shape, index), v.token_step, tokens, width, m.values);
    for (int64_t block = 0; block < blocks; ++block) {
      const auto [first, rows] = part_of(shape.queries, blocks, block);
      float* block_stats = stats + 2 * (index * shape.queries + first);
      put_transposed(q_head + first * q.token_step, q.token_step, rows, width, m.query);
      product<Element, 1>(rows, line, {m.query, lanes(rows)}, {m.keys, line, width_words},
                          {m.scores, kLine, false});
      put_maxima(m.scores, rows, tokens, factor, block_stats);
      for (int64_t i = 0; i < rows; ++i) {
        to_out.ask(1);
        next_q.ask(1);
        next_k.ask(tokens_a_query);
        next_v.ask(tokens_a_query);
        softmax_row(m.scores + i * kLine, tokens, factor,
                    reinterpret_cast<Element*>(m.p + i * kWordLine<Element>), block_stats + 2 * i);
      }
      product<Element, kWordLine<Element>>(
          rows, columns, {m.p, 1}, {m.values, columns, words<Element>(tokens)}, {m.mixed, columns, false});
      put_result(m.mixed, rows, width, 1.0F, block_stats, out_head + first * out.token_step, out.token_step);
    }
  }
}

// What backward keeps of a head. k and v are factors on the right, transposed for sums over the width, k also
// as it stands; so are q and the gradient, as it stands those of a group.
template <typename Element>
struct BackwardMemory {
  float *keys_t, *values_t, *keys, *query_t, *slope_t, *query, *slope, *scores, *dp, *of_q, *of_k, *of_v;
  Factors factors;

  BackwardMemory(const AttentionShape& s, Scratch& scratch) {
    constexpr int64_t kRows = kBackwardBlock<Element>, kPairs = words<Element>(kGroup<Element>);
    const int64_t width_words = words<Element>(s.head_width), columns = lanes(s.head_width);
    keys_t = scratch.take(width_words * lanes(s.tokens));
    values_t = scratch.take(width_words * lanes(s.tokens));
    keys = scratch.take(words<Element>(s.tokens) * columns);
    query_t = scratch.take(width_words * kRows);
    slope_t = scratch.take(width_words * kRows);
    query = scratch.take(kPairs * columns);
    slope = scratch.take(kPairs * columns);
    scores = scratch.take(kRows * kLine);
    dp = scratch.take(kRows * kLine);
    of_q = scratch.take(kRows * columns);
    of_k = scratch.take(s.tokens * columns);
    of_v = scratch.take(s.tokens * columns);
    if constexpr (sizeof(Element) == 4) {
      factors = {dp, scores, dp, kLine};
    } else {
      const int64_t line = lanes(s.tokens) | 16;  // an odd number of cache lines
      factors.ds_rows = scratch.take(kRows * kWordLine<Element>);
      factors.p_columns = scratch.take(kPairs * line);
      factors.ds_columns = scratch.take(kPairs * line);
      factors.line = line;
    }
  }
};

template <typename Element>
inline void attend_backward(const Heads<Element>& q, const Heads<Element>& k, const Heads<Element>& v,
                            const AttentionShape& shape, int64_t begin, int64_t end,
                            const Heads<Element>& gradient, const float* stats, const Heads<Element>& dq,
                            const Heads<Element>& dk, const Heads<Element>& dv, uint16_t* scratch) {
  const int64_t tokens = shape.tokens, width = shape.head_width, line = lanes(tokens), columns = lanes(width);
  const int64_t groups = parts_of(shape.queries, kGroup<Element>), width_words = words<Element>(width);
  const int64_t tokens_a_query = parts_of(tokens, shape.queries);
  const float scale = scale_of(shape), factor = kExponentUnit<Element> * scale;
  Scratch pieces{reinterpret_cast<float*>(scratch)};
  const BackwardMemory<Element> m(shape, pieces);
  constexpr const Element* kElement = nullptr;
  for (int64_t index = begin; index < end; ++index) {
    Ahead<Element> next_q(q, shape, index + 1, end, shape.queries), next_k(k, shape, index + 1, end, tokens);
    Ahead<Element> next_v(v, shape, index + 1, end, tokens),
        next_g(gradient, shape, index + 1, end, shape.queries);
    Ahead<Element> to_q(dq, shape, index, end, shape.queries), to_k(dk, shape, index, end, tokens),
        to_v(dv, shape, index, end, tokens);
    put_transposed(head_at(k, shape, index), k.token_step, tokens, width, m.keys_t);
    put_transposed(head_at(v, shape, index), v.token_step, tokens, width, m.values_t);
    put_rows(head_at(k, shape, index), k.token_step, tokens, width, m.keys);
    for (int64_t group = 0; group < groups; ++group) {
      const auto [start, group_rows] = part_of(shape.queries, groups, group);
      const Element* q_group = head_at(q, shape, index) + start * q.token_step;
      const Element* gradient_group = head_at(gradient, shape, index) + start * gradient.token_step;
      put_rows(q_group, q.token_step, group_rows, width, m.query);
      put_rows(gradient_group, gradient.token_step, group_rows, width, m.slope);
      const int64_t blocks = parts_of(group_rows, kBackwardBlock<Element>);
      for (int64_t block = 0; block < blocks; ++block) {
        const auto [first, rows] = part_of(group_rows, blocks, block);
        const float* block_stats = stats + 2 * (index * shape.queries + start + first);
        put_transposed(q_group + first * q.token_step, q.token_step, rows, width, m.query_t);
        put_transposed(gradient_group + first * gradient.token_step, gradient.token_step, rows, width,
                       m.slope_t);
        product<Element, 1>(rows, line, {m.query_t, lanes(rows)}, {m.keys_t, line, width_words},
                            {m.scores, kLine, false});
        product<Element, 1>(rows, line, {m.slope_t, lanes(rows)}, {m.values_t, line, width_words},
                            {m.dp, kLine, false});
        float sums[kBackwardBlock<Element>];
        for (int64_t i = 0; i < rows; ++i) {
          next_q.ask(1);
          next_k.ask(tokens_a_query);
          next_v.ask(tokens_a_query);
          next_g.ask(1);
          to_q.ask(1);
          to_k.ask(tokens_a_query);
          to_v.ask(tokens_a_query);
          sums[i] = softmax_again_row<Element>(m.scores + i * kLine, m.dp + i * kLine, tokens, factor,
                                               block_stats + 2 * i);
        }
        Factors to = m.factors;
        to.p_columns += words<Element>(first) * to.line;
        to.ds_columns += words<Element>(first) * to.line;
        put_factors(kElement, m.scores, m.dp, rows, tokens, sums, to);
        product<Element, kWordLine<Element>>(rows, columns, {m.factors.ds_rows, 1},
                                             {m.keys, columns, words<Element>(tokens)},
                                             {m.of_q, columns, false});
        put_result<Element>(m.of_q, rows, width, scale, nullptr,
                            head_at(dq, shape, index) + (start + first) * dq.token_step, dq.token_step);
      }
      const int64_t row_words = words<Element>(group_rows);
      product<Element, 1>(tokens, columns, {m.factors.p_columns, m.factors.line},
                          {m.slope, columns, row_words}, {m.of_v, columns, group != 0});
      product<Element, 1>(tokens, columns, {m.factors.ds_columns, m.factors.line},
                          {m.query, columns, row_words}, {m.of_k, columns, group != 0});
    }
    put_result<Element>(m.of_v, tokens, width, 1.0F, nullptr, head_at(dv, shape, index), dv.token_step);
    put_result<Element>(m.of_k, tokens, width, scale, nullptr, head_at(dk, shape, index), dk.token_step);
  }
}

}  // namespace
}  // namespace tessera::ops::avx512
