// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/cpu/amx_attention.h"

#include "tessera/ops/cpu/amx_tiles.h"
#include "tessera/ops/cpu/vector_attention_heads.h"

namespace tessera::ops::amx {
namespace {

using vectors::kLine;

constexpr int64_t kRows = 32;  // queries of a block
// Elements between rows of probabilities, and of the gradients of scores.
constexpr int64_t kWide = 2 * vectors::kWordLine<uint16_t>;

using Ahead = vectors::Ahead<uint16_t>;

// Hands out pieces of scratch, aligned to cache lines.
struct Scratch {
  uint16_t* next;
  uint16_t* take(int64_t elements) {
    uint16_t* piece = next;
    next += padded(elements);
    return piece;
  }
  float* take_floats(int64_t count) { return reinterpret_cast<float*>(take(2 * count)); }
};

// c [32, columns] = 32 rows, `k` long, times a packed factor.
void block_product(const Left& left, int64_t k, const uint16_t* packed, int64_t columns, float* c,
                   int64_t c_row) {
  for (int64_t column = 0; column < columns; column += 32) {
    product(left, packed + column * k, 16 * k, k / kStep, c + column, c_row);
  }
}

// A head's rows from `data` on as they lie, if they are whole tiles; else a copy of them.
Left rows_of(const uint16_t* data, int64_t row_step, int64_t rows, int64_t width, uint16_t* copy) {
  if (rows == kRows && width % kStep == 0) return left_rows(data, row_step);
  return copy_rows(data, row_step, rows, width, copy);
}

// One row as factors: p, and the gradient of the scores but for their scale, ds = p * (dp - sum(p * dp)).
// Whole pairs of vectors, zero past `tokens`.
void put_row(const float* p, const float* dp, float sum, int64_t tokens, uint16_t* to_p, uint16_t* to_ds) {
  const __m512 mean = _mm512_set1_ps(sum);
  for (int64_t j = 0; j < tokens; j += 32) {
    const __mmask16 second = tokens - j > 16 ? __mmask16(0xFFFF) : __mmask16(0);
    const __m512 p0 = _mm512_loadu_ps(p + j), p1 = _mm512_maskz_loadu_ps(second, p + j + 16);
    const __m512 ds0 = _mm512_mul_ps(p0, _mm512_sub_ps(_mm512_loadu_ps(dp + j), mean));
    const __m512 ds1 = _mm512_mul_ps(p1, _mm512_sub_ps(_mm512_loadu_ps(dp + j + 16), mean));
    _mm512_storeu_si512(to_p + j, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(p1, p0)));
    _mm512_storeu_si512(to_ds + j, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(ds1, ds0)));
  }
}

// Scores and dp of some rows as factors. A row's are made after the next one's sum: a number is long in
// coming out of a vector. Calls each_row(i) before row i.
template <typename EachRow>
void softmax_backward(float* s, const float* dp, int64_t rows, int64_t tokens, float factor,
                      const float* stats, uint16_t* p, uint16_t* ds, const EachRow& each_row) {
  float last = 0;
  for (int64_t i = 0; i <= rows; ++i) {
    float sum = 0;
    if (i < rows) {
      each_row(i);
      sum =
          vectors::softmax_again_row<uint16_t>(s + i * kLine, dp + i * kLine, tokens, factor, stats + 2 * i);
    }
    if (i > 0) {
      const int64_t row = i - 1;
      put_row(s + row * kLine, dp + row * kLine, last, tokens, p + row * kWide, ds + row * kWide);
    }
    last = sum;
  }
}

}  // namespace

int64_t attention_scratch(const AttentionShape& s) {
  const int64_t tokens = padded(s.tokens), width = padded(s.head_width);
  return 2 * width * tokens + kRows * width + kRows * kWide + 2 * kRows * kLine + 2 * kRows * width;
}

int64_t attention_backward_scratch(const AttentionShape& s) {
  const int64_t tokens = padded(s.tokens), queries = padded(s.queries), width = padded(s.head_width);
  return 3 * width * tokens + 2 * width * queries + 2 * kRows * width + 4 * kRows * kLine +
         2 * queries * kWide + kRows * queries + 2 * kRows * width;
}

void attention(const Heads& q, const Heads& k, const Heads& v, const AttentionShape& shape, int64_t begin,
               int64_t end, const Heads& out, float* stats, uint16_t* scratch) {
  const Tiles tiles;
  const int64_t tokens = padded(shape.tokens), head = shape.head_width, width = padded(head);
  const float factor = vectors::kExponentUnit<uint16_t> * scale_of(shape);
  Scratch memory{scratch};
  uint16_t *keys = memory.take(width * tokens), *values = memory.take(width * tokens);
  uint16_t *query = memory.take(kRows * width), *p = memory.take(kRows * kWide);
  float *scores = memory.take_floats(kRows * kLine), *mixed = memory.take_floats(kRows * width);
  for (int64_t index = begin; index < end; ++index) {
    const int64_t next = index + 1;
    const Ahead ahead[] = {{out, shape, shape.queries, index, end},
                           {q, shape, shape.queries, next, end},
                           {k, shape, shape.tokens, next, end},
                           {v, shape, shape.tokens, next, end}};
    pack_right_transposed(head_at(k, shape, index), k.token_step, shape.tokens, head, keys);
    pack_right(head_at(v, shape, index), v.token_step, shape.tokens, head, values);
    for (int64_t row = 0; row < shape.queries; row += kRows) {
      const int64_t rows = min_of(shape.queries - row, kRows);
      float* row_stats = stats + 2 * (index * shape.queries + row);
      const uint16_t* of_q = head_at(q, shape, index) + row * q.token_step;
      block_product(rows_of(of_q, q.token_step, rows, head, query), width, keys, tokens, scores, kLine);
      vectors::put_maxima(scores, rows, shape.tokens, factor, row_stats, [&](int64_t i) {
        for (const Ahead& rows_ahead : ahead) rows_ahead.ask(row + i);
      });
      for (int64_t i = 0; i < rows; ++i) {
        vectors::softmax_row(scores + i * kLine, shape.tokens, factor, p + i * kWide, row_stats + 2 * i);
      }
      block_product(left_rows(p, kWide), tokens, values, width, mixed, width);
      vectors::put_result(mixed, width, rows, head, 1.0F, row_stats,
                          head_at(out, shape, index) + row * out.token_step, out.token_step);
    }
  }
}

void attention_backward(const Heads& q, const Heads& k, const Heads& v, const AttentionShape& shape,
                        int64_t begin, int64_t end, const Heads& gradient, const float* stats,
                        const Heads& dq, const Heads& dk, const Heads& dv, uint16_t* scratch) {
  const Tiles tiles;
  const int64_t tokens = padded(shape.tokens), queries = padded(shape.queries);
  const int64_t width = padded(shape.head_width), head = shape.head_width;
  const float scale = scale_of(shape), factor = vectors::kExponentUnit<uint16_t> * scale;
  Scratch memory{scratch};
  uint16_t *keys_t = memory.take(width * tokens), *values_t = memory.take(width * tokens);
  uint16_t *keys = memory.take(width * tokens), *queries_packed = memory.take(width * queries);
  uint16_t *gradients_packed = memory.take(width * queries), *left = memory.take(kRows * queries);
  uint16_t *query = memory.take(kRows * width), *slope = memory.take(kRows * width);
  uint16_t *p = memory.take(queries * kWide), *ds = memory.take(queries * kWide);
  float *scores = memory.take_floats(kRows * kLine), *dp = memory.take_floats(kRows * kLine);
  float* result = memory.take_floats(kRows * width);
  for (int64_t index = begin; index < end; ++index) {
    const int64_t next = index + 1;
    const Ahead ahead[] = {{dq, shape, shape.queries, index, end},      {dk, shape, shape.tokens, index, end},
                           {dv, shape, shape.tokens, index, end},       {q, shape, shape.queries, next, end},
                           {gradient, shape, shape.queries, next, end}, {k, shape, shape.tokens, next, end},
                           {v, shape, shape.tokens, next, end}};
    const uint16_t *q_head = head_at(q, shape, index), *gradient_head = head_at(gradient, shape, index);
    pack_right_transposed(head_at(k, shape, index), k.token_step, shape.tokens, head, keys_t);
    pack_right_transposed(head_at(v, shape, index), v.token_step, shape.tokens, head, values_t);
    pack_right(head_at(k, shape, index), k.token_step, shape.tokens, head, keys);
    pack_right(q_head, q.token_step, shape.queries, head, queries_packed);
    pack_right(gradient_head, gradient.token_step, shape.queries, head, gradients_packed);
    for (int64_t row = 0; row < shape.queries; row += kRows) {
      const int64_t rows = min_of(shape.queries - row, kRows);
      uint16_t *row_p = p + row * kWide, *row_ds = ds + row * kWide;
      block_product(rows_of(q_head + row * q.token_step, q.token_step, rows, head, query), width, keys_t,
                    tokens, scores, kLine);
      block_product(
          rows_of(gradient_head + row * gradient.token_step, gradient.token_step, rows, head, slope), width,
          values_t, tokens, dp, kLine);
      softmax_backward(scores, dp, rows, shape.tokens, factor, stats + 2 * (index * shape.queries + row),
                       row_p, row_ds, [&](int64_t i) {
#pragma GCC unroll 7
                         for (const Ahead& rows_ahead : ahead) rows_ahead.ask(row + i);
                       });
      block_product(left_rows(row_ds, kWide), tokens, keys, width, result, width);
      vectors::put_result(result, width, rows, head, scale, nullptr,
                          head_at(dq, shape, index) + row * dq.token_step, dq.token_step);
    }
    for (int64_t token = 0; token < shape.tokens; token += kRows) {
      const int64_t rows = min_of(shape.tokens - token, kRows);
      const auto transposed_product = [&](const uint16_t* w, const uint16_t* packed, float by,
                                          const Heads& out) {
        pack_left(w + token, kWide, shape.queries, rows, left);
        block_product({left, 32, 16 * queries, kTile}, queries, packed, width, result, width);
        vectors::put_result(result, width, rows, head, by, nullptr,
                            head_at(out, shape, index) + token * out.token_step, out.token_step);
      };
      transposed_product(p, gradients_packed, 1.0F, dv);
      transposed_product(ds, queries_packed, scale, dk);
    }
  }
}

}  // namespace tessera::ops::amx
