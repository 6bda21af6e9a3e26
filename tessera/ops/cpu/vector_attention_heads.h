// SPDX-License-Identifier: Apache-2.0
// Attention, written once for bf16 and fp32, and for bf16 in memory with products of fp32: Element
// is the type of numbers in memory, Word that of factors (vector_product.h). AMX's takes Ahead and put_result
// from here. Private to the files that compile it; like vectors.h without any standard header.
//
// A head at a time: k and v are laid out for products once, then queries come in blocks whose scores,
// probabilities and their gradients stay in the cache. Meanwhile the next head comes into it.
#pragma once

#include "tessera/ops/cpu/vector_attention.h"
#include "tessera/ops/cpu/vector_product.h"
#include "tessera/ops/cpu/vector_softmax.h"

namespace tessera::ops::vectors {
namespace {

// Queries of a block: with 200 tokens their scores fit the L1 cache.
constexpr int64_t kBlock = 32;

// Backward: queries of a block, and those over which the gradients of k and v are summed up at once. In fp32
// the factors of such a sum are the block's scores themselves, in bf16 copies of half the size.
template <typename Word>
constexpr int64_t kBackwardBlock = sizeof(Word) == 4 ? 64 : 32;
template <typename Word>
constexpr int64_t kGroup = sizeof(Word) == 4 ? kBackwardBlock<Word> : 224;

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

// Range `index` of the queries; all ranges have nearly one size.
struct QueryRange {
  int64_t first, rows;
};
inline int64_t parts_of(int64_t queries, int64_t most) { return (queries + most - 1) / most; }
inline QueryRange part_of(int64_t queries, int64_t parts, int64_t index) {
  // (Even: bf16 pairs neighbours.)
  const auto begin = [&](int64_t i) { return min_of((queries * i / parts + 1) / 2 * 2, queries); };
  return {begin(index), begin(index + 1) - begin(index)};
}

// Asks for a line of the L2 cache. A statement of assembler: a function that does nothing but _mm_prefetch()
// g++ takes for one without effect, and drops calls of it.
inline void to_l2(const void* p) { asm volatile("prefetcht1 %0" : : "m"(*static_cast<const char*>(p))); }

// Rows of a head that are needed soon, asked for with each query, so that all are when each query had its
// turn. They lie apart by the width of all heads, which no CPU foresees.
template <typename Element>
struct Ahead {
  const Element* head;
  int64_t step, count, a_query, width;

  // `count` rows of head `index`; none if it is `end`.
  Ahead(const Heads<Element>& x, const AttentionShape& shape, int64_t count, int64_t index, int64_t end)
      : head(index < end ? head_at(x, shape, index) : nullptr),
        step(x.token_step),
        count(index < end ? count : 0),
        a_query(parts_of(count, shape.queries)),
        width(shape.head_width) {}

  void ask(int64_t query) const {
    const int64_t last = min_of((query + 1) * a_query, count);
    for (int64_t row = query * a_query; row < last; ++row) {
      for (int64_t j = 0; j < width; j += 64 / static_cast<int64_t>(sizeof(Element))) {
        to_l2(head + row * step + j);
      }
    }
  }
};

// Rows of c, c_row apart, each times `factor` and times the second of its stats, if there are any.
template <typename Element>
inline void put_result(const float* c, int64_t c_row, int64_t rows, int64_t width, float factor,
                       const float* stats, Element* out, int64_t out_row) {
  for (int64_t i = 0; i < rows; ++i) {
    const Floats by = broadcast(stats != nullptr ? stats[2 * i + 1] * factor : factor);
    for (int64_t j = 0; j < width; j += 16) {
      const Floats result = by * load(c + i * c_row + j);
      store(out + i * out_row + j, first_lanes(width - j), result);
    }
  }
}

template <typename Word>
struct Memory {
  float *keys, *values, *query, *scores, *p, *mixed;

  Memory(const AttentionShape& s, Scratch& scratch) {
    const int64_t width_words = words<Word>(s.head_width), columns = lanes(s.head_width);
    keys = scratch.take(width_words * lanes(s.tokens));
    values = scratch.take(words<Word>(s.tokens) * columns);
    query = scratch.take(width_words * kBlock);
    scores = scratch.take(kBlock * kLine);
    p = scratch.take(kBlock * kWordLine<Word>);
    mixed = scratch.take(kBlock * columns);
  }
};

// What backward keeps of a head. k and v are factors on the right, transposed for sums over the width, k also
// as it stands; so are q and the gradient, as it stands those of a group.
template <typename Word>
struct BackwardMemory {
  float *keys_t, *values_t, *keys, *query_t, *slope_t, *query, *slope, *scores, *dp, *of_q, *of_k, *of_v;
  Factors factors;

  BackwardMemory(const AttentionShape& s, Scratch& scratch) {
    constexpr int64_t kRows = kBackwardBlock<Word>, kPairs = words<Word>(kGroup<Word>);
    const int64_t width_words = words<Word>(s.head_width), columns = lanes(s.head_width);
    keys_t = scratch.take(width_words * lanes(s.tokens));
    values_t = scratch.take(width_words * lanes(s.tokens));
    keys = scratch.take(words<Word>(s.tokens) * columns);
    query_t = scratch.take(width_words * kRows);
    slope_t = scratch.take(width_words * kRows);
    query = scratch.take(kPairs * columns);
    slope = scratch.take(kPairs * columns);
    scores = scratch.take(kRows * kLine);
    dp = scratch.take(kRows * kLine);
    of_q = scratch.take(kRows * columns);
    of_k = scratch.take(s.tokens * columns);
    of_v = scratch.take(s.tokens * columns);
    if constexpr (sizeof(Word) == 4) {
      factors = {dp, scores, dp, kLine};
    } else {
      const int64_t line = lanes(s.tokens) | 16;  // an odd number of cache lines
      factors.ds_rows = scratch.take(kRows * kWordLine<Word>);
      factors.p_columns = scratch.take(kPairs * line);
      factors.ds_columns = scratch.take(kPairs * line);
      factors.line = line;
    }
  }
};

// Rows of a head, `step` elements apart.
template <typename Element>
struct Rows {
  Element* data;
  int64_t step;
  Rows from(int64_t row) const { return {data + row * step, step}; }
};
template <typename Element>
inline Rows<Element> rows_of(const Heads<Element>& x, const AttentionShape& shape, int64_t index) {
  return {head_at(x, shape, index), x.token_step};
}

// A block of `rows` queries: puts p and ds, and dq.
template <typename Word, typename Element, typename EachRow>
inline void backward_block(const BackwardMemory<Word>& m, const AttentionShape& shape, int64_t rows,
                           const Rows<Element>& q, const Rows<Element>& gradient, const float* stats,
                           const Factors& to, const Rows<Element>& dq, const EachRow& each_row) {
  const int64_t tokens = shape.tokens, width = shape.head_width, line = lanes(tokens), columns = lanes(width);
  const int64_t width_words = words<Word>(width);
  const float scale = scale_of(shape);
  put_transposed<Word>(q.data, q.step, rows, width, m.query_t);
  put_transposed<Word>(gradient.data, gradient.step, rows, width, m.slope_t);
  product<Word, 1>(rows, line, {m.query_t, lanes(rows)}, {m.keys_t, line, width_words},
                   {m.scores, kLine, false});
  product<Word, 1>(rows, line, {m.slope_t, lanes(rows)}, {m.values_t, line, width_words},
                   {m.dp, kLine, false});
  softmax_backward<Word>(m.scores, m.dp, rows, tokens, kExponentUnit<Word> * scale, stats, to, each_row);
  product<Word, kWordLine<Word>>(rows, columns, {to.ds_rows, 1}, {m.keys, columns, words<Word>(tokens)},
                                 {m.of_q, columns, false});
  put_result(m.of_q, columns, rows, width, scale, nullptr, dq.data, dq.step);
}

// One range of a head's queries, from q's, the gradient's, dq's and the stats' first on: puts dq, puts or
// adds dk and dv.
template <typename Word, typename Element, typename EachRow>
inline void backward_group(const BackwardMemory<Word>& m, const AttentionShape& shape, int64_t group_rows,
                           const Rows<Element>& q, const Rows<Element>& gradient, const float* stats,
                           const Rows<Element>& dq, bool add, const EachRow& each_row) {
  const int64_t tokens = shape.tokens, width = shape.head_width, columns = lanes(width);
  put_rows<Word>(q.data, q.step, group_rows, width, m.query);
  put_rows<Word>(gradient.data, gradient.step, group_rows, width, m.slope);
  const int64_t blocks = parts_of(group_rows, kBackwardBlock<Word>);
  for (int64_t block = 0; block < blocks; ++block) {
    const auto [first, rows] = part_of(group_rows, blocks, block);
    Factors to = m.factors;
    to.p_columns += words<Word>(first) * to.line;
    to.ds_columns += words<Word>(first) * to.line;
    backward_block(m, shape, rows, q.from(first), gradient.from(first), stats + 2 * first, to, dq.from(first),
                   [&, from = first](int64_t i) { each_row(from + i); });
  }
  const int64_t row_words = words<Word>(group_rows);
  product<Word, 1>(tokens, columns, {m.factors.p_columns, m.factors.line}, {m.slope, columns, row_words},
                   {m.of_v, columns, add});
  product<Word, 1>(tokens, columns, {m.factors.ds_columns, m.factors.line}, {m.query, columns, row_words},
                   {m.of_k, columns, add});
}

}  // namespace

template <typename Set, typename Element, typename Word>
int64_t AttentionKernels<Set, Element, Word>::scratch(const AttentionShape& shape) {
  Scratch count{nullptr};
  Memory<Word>(shape, count);
  return 2 * count.used;
}

template <typename Set, typename Element, typename Word>
int64_t AttentionKernels<Set, Element, Word>::backward_scratch(const AttentionShape& shape) {
  Scratch count{nullptr};
  BackwardMemory<Word>(shape, count);
  return 2 * count.used;
}

template <typename Set, typename Element, typename Word>
void AttentionKernels<Set, Element, Word>::forward(const Heads<Element>& q, const Heads<Element>& k,
                                                   const Heads<Element>& v, const AttentionShape& shape,
                                                   int64_t begin, int64_t end, const Heads<Element>& out,
                                                   float* stats, uint16_t* scratch) {
  const int64_t tokens = shape.tokens, width = shape.head_width, line = lanes(tokens), columns = lanes(width);
  const int64_t queries = shape.queries, blocks = parts_of(queries, kBlock);
  const float factor = kExponentUnit<Word> * scale_of(shape);
  Scratch pieces{reinterpret_cast<float*>(scratch)};
  const Memory<Word> m(shape, pieces);
  for (int64_t index = begin; index < end; ++index) {
    const Element* q_head = head_at(q, shape, index);
    Element* out_head = head_at(out, shape, index);
    const int64_t next = index + 1;
    const Ahead<Element> this_out(out, shape, queries, index, end), next_q(q, shape, queries, next, end);
    const Ahead<Element> next_k(k, shape, tokens, next, end), next_v(v, shape, tokens, next, end);
    put_transposed<Word>(head_at(k, shape, index), k.token_step, tokens, width, m.keys);
    put_rows<Word>(head_at(v, shape, index), v.token_step, tokens, width, m.values);
    for (int64_t block = 0; block < blocks; ++block) {
      const auto [first, rows] = part_of(queries, blocks, block);
      float* block_stats = stats + 2 * (index * queries + first);
      put_transposed<Word>(q_head + first * q.token_step, q.token_step, rows, width, m.query);
      product<Word, 1>(rows, line, {m.query, lanes(rows)}, {m.keys, line, words<Word>(width)},
                       {m.scores, kLine, false});
      put_maxima(m.scores, rows, tokens, factor, block_stats, [&, from = first](int64_t i) {
        this_out.ask(from + i);
        next_q.ask(from + i);
      });
      for (int64_t i = 0; i < rows; ++i) {
        next_k.ask(first + i);
        next_v.ask(first + i);
        softmax_row(m.scores + i * kLine, tokens, factor, reinterpret_cast<Word*>(m.p + i * kWordLine<Word>),
                    block_stats + 2 * i);
      }
      product<Word, kWordLine<Word>>(rows, columns, {m.p, 1}, {m.values, columns, words<Word>(tokens)},
                                     {m.mixed, columns, false});
      put_result(m.mixed, columns, rows, width, 1.0F, block_stats, out_head + first * out.token_step,
                 out.token_step);
    }
  }
}

template <typename Set, typename Element, typename Word>
void AttentionKernels<Set, Element, Word>::backward(const Heads<Element>& q, const Heads<Element>& k,
                                                    const Heads<Element>& v, const AttentionShape& shape,
                                                    int64_t begin, int64_t end,
                                                    const Heads<Element>& gradient, const float* stats,
                                                    const Heads<Element>& dq, const Heads<Element>& dk,
                                                    const Heads<Element>& dv, uint16_t* scratch) {
  const int64_t tokens = shape.tokens, width = shape.head_width, columns = lanes(width);
  const int64_t queries = shape.queries, groups = parts_of(queries, kGroup<Word>);
  Scratch pieces{reinterpret_cast<float*>(scratch)};
  const BackwardMemory<Word> m(shape, pieces);
  for (int64_t index = begin; index < end; ++index) {
    const int64_t next = index + 1;
    const Ahead<Element> ahead[] = {{dq, shape, queries, index, end},      {dk, shape, tokens, index, end},
                                    {dv, shape, tokens, index, end},       {q, shape, queries, next, end},
                                    {gradient, shape, queries, next, end}, {k, shape, tokens, next, end},
                                    {v, shape, tokens, next, end}};
    put_transposed<Word>(head_at(k, shape, index), k.token_step, tokens, width, m.keys_t);
    put_transposed<Word>(head_at(v, shape, index), v.token_step, tokens, width, m.values_t);
    put_rows<Word>(head_at(k, shape, index), k.token_step, tokens, width, m.keys);
    for (int64_t group = 0; group < groups; ++group) {
      const auto [first, rows] = part_of(queries, groups, group);
      backward_group(m, shape, rows, rows_of(q, shape, index).from(first),
                     rows_of(gradient, shape, index).from(first), stats + 2 * (index * queries + first),
                     rows_of(dq, shape, index).from(first), group != 0, [&, from = first](int64_t i) {
#pragma GCC unroll 7
                       for (const auto& rows_ahead : ahead) rows_ahead.ask(from + i);
                     });
    }
    put_result(m.of_v, columns, tokens, width, 1.0F, nullptr, head_at(dv, shape, index), dv.token_step);
    put_result(m.of_k, columns, tokens, width, scale_of(shape), nullptr, head_at(dk, shape, index),
               dk.token_step);
  }
}

}  // namespace tessera::ops::vectors
