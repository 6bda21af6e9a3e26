#include "tessera/ops/amx_attention.h"

#include "tessera/ops/amx_tiles.h"

namespace tessera::ops::amx {
namespace {

constexpr int64_t kRows = 32;

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

// c [32, columns] = a [32, k] (row-major, k padded) times a packed factor.
void block_product(const uint16_t* a, int64_t k, const uint16_t* packed, int64_t columns, float* c,
                   int64_t c_row) {
  for (int64_t column = 0; column < columns; column += 32) {
    product(a, 16 * k, 32, k, packed + column * k, 16 * k, k / 32, c + column, c_row);
  }
}

void store_rows(const float* c, int64_t c_row, int64_t rows, int64_t width, uint16_t* out, int64_t out_row,
                const float* factors) {
  for (int64_t i = 0; i < rows; ++i) {
    const __m512 factor = _mm512_set1_ps(factors != nullptr ? factors[2 * i + 1] : 1.0F);
    for (int64_t j = 0; j < width; j += 16) {
      avx512::store_bf16(out + i * out_row + j, avx512::first_lanes(width - j),
                         _mm512_mul_ps(factor, _mm512_loadu_ps(c + i * c_row + j)));
    }
  }
}

// One row: p = e^(scale * s - max), zero from `tokens` to the padded end; stats: max, 1 / sum.
void softmax_row(const float* s, int64_t tokens, float scale, uint16_t* p, float* stats) {
  const __m512 factor = _mm512_set1_ps(scale), lowest = _mm512_set1_ps(-3.4e38F);
  __m512 most = lowest;
  for (int64_t j = 0; j < tokens; j += 16) {
    most = _mm512_max_ps(_mm512_mask_loadu_ps(lowest, avx512::first_lanes(tokens - j), s + j), most);
  }
  const float top = scale * _mm512_reduce_max_ps(most);
  __m512 sum = _mm512_setzero_ps();
  for (int64_t j = 0; j < padded(tokens); j += 16) {
    const __mmask16 mask = j < tokens ? avx512::first_lanes(tokens - j) : __mmask16(0);
    const __m512 e = avx512::exp(_mm512_fmsub_ps(_mm512_loadu_ps(s + j), factor, _mm512_set1_ps(top)));
    const __m512 kept = _mm512_maskz_mov_ps(mask, e);
    sum = _mm512_add_ps(sum, kept);
    avx512::store_bf16(p + j, 0xFFFF, kept);
  }
  stats[0] = top;
  stats[1] = 1.0F / _mm512_reduce_add_ps(sum);
}

// One row: p again from the scores and stats, and the gradient of the scores,
// ds = p * (dp - sum(p * dp)) * scale; both zero past `tokens`.
void softmax_backward_row(float* s, const float* dp, int64_t tokens, float scale, const float* stats,
                          uint16_t* p, uint16_t* ds) {
  const __m512 factor = _mm512_set1_ps(scale), top = _mm512_set1_ps(stats[0]),
               share = _mm512_set1_ps(stats[1]);
  __m512 sum = _mm512_setzero_ps();
  for (int64_t j = 0; j < padded(tokens); j += 16) {
    const __mmask16 mask = j < tokens ? avx512::first_lanes(tokens - j) : __mmask16(0);
    const __m512 e = avx512::exp(_mm512_fmsub_ps(_mm512_loadu_ps(s + j), factor, top));
    const __m512 kept = _mm512_maskz_mul_ps(mask, e, share);
    sum = _mm512_add_ps(sum, _mm512_maskz_mul_ps(mask, kept, _mm512_loadu_ps(dp + j)));
    _mm512_storeu_ps(s + j, kept);
    avx512::store_bf16(p + j, 0xFFFF, kept);
  }
  const __m512 mean = _mm512_set1_ps(_mm512_reduce_add_ps(sum));
  for (int64_t j = 0; j < padded(tokens); j += 16) {
    const __mmask16 mask = j < tokens ? avx512::first_lanes(tokens - j) : __mmask16(0);
    const __m512 slope = _mm512_mul_ps(_mm512_sub_ps(_mm512_loadu_ps(dp + j), mean), factor);
    avx512::store_bf16(ds + j, 0xFFFF, _mm512_maskz_mul_ps(mask, slope, _mm512_loadu_ps(s + j)));
  }
}

}  // namespace

int64_t attention_scratch(const AttentionShape& s) {
  const int64_t tokens = padded(s.tokens), width = padded(s.head_width);
  return 2 * width * tokens + kRows * width + 3 * kRows * tokens + 2 * kRows * width;
}

int64_t attention_backward_scratch(const AttentionShape& s) {
  const int64_t tokens = padded(s.tokens), queries = padded(s.queries), width = padded(s.head_width);
  return 3 * width * tokens + 2 * width * queries + 2 * kRows * width + 4 * kRows * tokens +
         2 * queries * tokens + kRows * queries + 2 * kRows * width;
}

void attention(const Heads& q, const Heads& k, const Heads& v, const AttentionShape& shape, int64_t begin,
               int64_t end, const Heads& out, float* stats, uint16_t* scratch) {
  const Tiles tiles;
  const int64_t tokens = padded(shape.tokens), width = padded(shape.head_width);
  const float scale = scale_of(shape);
  Scratch memory{scratch};
  uint16_t *keys = memory.take(width * tokens), *values = memory.take(width * tokens);
  uint16_t *query = memory.take(kRows * width), *p = memory.take(kRows * tokens);
  float *scores = memory.take_floats(kRows * tokens), *mixed = memory.take_floats(kRows * width);
  for (int64_t index = begin; index < end; ++index) {
    pack_right_transposed(head_at(k, shape, index), k.token_step, shape.tokens, shape.head_width, keys);
    pack_right(head_at(v, shape, index), v.token_step, shape.tokens, shape.head_width, values);
    for (int64_t row = 0; row < shape.queries; row += kRows) {
      const int64_t rows = min_of(shape.queries - row, kRows);
      float* row_stats = stats + 2 * (index * shape.queries + row);
      copy_padded(head_at(q, shape, index) + row * q.token_step, q.token_step, rows, shape.head_width, query);
      block_product(query, width, keys, tokens, scores, tokens);
      for (int64_t i = 0; i < rows; ++i) {
        softmax_row(scores + i * tokens, shape.tokens, scale, p + i * tokens, row_stats + 2 * i);
      }
      block_product(p, tokens, values, width, mixed, width);
      store_rows(mixed, width, rows, shape.head_width, head_at(out, shape, index) + row * out.token_step,
                 out.token_step, row_stats);
    }
  }
}

void attention_backward(const Heads& q, const Heads& k, const Heads& v, const AttentionShape& shape,
                        int64_t begin, int64_t end, const Heads& gradient, const float* stats,
                        const Heads& dq, const Heads& dk, const Heads& dv, uint16_t* scratch) {
  const Tiles tiles;
  const int64_t tokens = padded(shape.tokens), queries = padded(shape.queries);
  const int64_t width = padded(shape.head_width), head = shape.head_width;
  Scratch memory{scratch};
  uint16_t *keys_t = memory.take(width * tokens), *values_t = memory.take(width * tokens);
  uint16_t *keys = memory.take(width * tokens), *queries_packed = memory.take(width * queries);
  uint16_t *gradients_packed = memory.take(width * queries), *left = memory.take(kRows * queries);
  uint16_t *query = memory.take(kRows * width), *slope = memory.take(kRows * width);
  uint16_t *p = memory.take(queries * tokens), *ds = memory.take(queries * tokens);
  float *scores = memory.take_floats(kRows * tokens), *dp = memory.take_floats(kRows * tokens);
  float* result = memory.take_floats(kRows * width);
  for (int64_t index = begin; index < end; ++index) {
    const uint16_t *q_head = head_at(q, shape, index), *gradient_head = head_at(gradient, shape, index);
    pack_right_transposed(head_at(k, shape, index), k.token_step, shape.tokens, head, keys_t);
    pack_right_transposed(head_at(v, shape, index), v.token_step, shape.tokens, head, values_t);
    pack_right(head_at(k, shape, index), k.token_step, shape.tokens, head, keys);
    pack_right(q_head, q.token_step, shape.queries, head, queries_packed);
    pack_right(gradient_head, gradient.token_step, shape.queries, head, gradients_packed);
    for (int64_t row = 0; row < shape.queries; row += kRows) {
      const int64_t rows = min_of(shape.queries - row, kRows);
      copy_padded(q_head + row * q.token_step, q.token_step, rows, head, query);
      copy_padded(gradient_head + row * gradient.token_step, gradient.token_step, rows, head, slope);
      block_product(query, width, keys_t, tokens, scores, tokens);
      block_product(slope, width, values_t, tokens, dp, tokens);
      for (int64_t i = 0; i < rows; ++i) {
        softmax_backward_row(scores + i * tokens, dp + i * tokens, shape.tokens, scale_of(shape),
                             stats + 2 * (index * shape.queries + row + i), p + (row + i) * tokens,
                             ds + (row + i) * tokens);
      }
      block_product(ds + row * tokens, tokens, keys, width, result, width);
      store_rows(result, width, rows, head, head_at(dq, shape, index) + row * dq.token_step, dq.token_step,
                 nullptr);
    }
    for (int64_t token = 0; token < shape.tokens; token += kRows) {
      const int64_t rows = min_of(shape.tokens - token, kRows);
      const auto transposed_product = [&](const uint16_t* w, const uint16_t* packed, const Heads& out) {
        pack_left(w + token, tokens, shape.queries, rows, left, nullptr);
        for (int64_t column = 0; column < width; column += 32) {
          product(left, 16 * queries, kTile, 32, packed + column * queries, 16 * queries, queries / 32,
                  result + column, width);
        }
        store_rows(result, width, rows, head, head_at(out, shape, index) + token * out.token_step,
                   out.token_step, nullptr);
      };
      transposed_product(p, gradients_packed, dv);
      transposed_product(ds, queries_packed, dk);
    }
  }
}

}  // namespace tessera::ops::amx
