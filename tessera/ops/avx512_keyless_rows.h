// The kernels of avx512_keyless.h, written once for bf16 and fp32. Private to the two files that compile
// them; like avx512_math.h without any standard header.
#pragma once

#include "tessera/ops/avx512_keyless.h"
#include "tessera/ops/avx512_lanes.h"

namespace tessera::ops::avx512 {
namespace {

// Factors that a block multiplies at a time: 24 registers of sums, for 10 loads.
constexpr int64_t kSix = 6, kFour = 4;

// body(lanes, first column) for all columns, 16 at a time.
template <typename Body>
[[gnu::always_inline]] inline void over_sixteens(int64_t width, const Body& body) {
  int64_t j = 0;
  for (; j + 16 <= width; j += 16) body(Whole(), j);
  if (j < width) body(Rest{first_lanes(width - j)}, j);
}

// The four numbers that four vectors add up to.
inline __m128 sums_of_four(const __m512* v) {
  __m128 quarter[4];
  for (int i = 0; i < 4; ++i) {
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(v[i]), _mm512_extractf32x8_ps(v[i], 1));
    quarter[i] = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  }
  return _mm_hadd_ps(_mm_hadd_ps(quarter[0], quarter[1]), _mm_hadd_ps(quarter[2], quarter[3]));
}

// result [rows, tokens] = u x^T of u [rows, width] and x [tokens, width]. What is left of a block is its last
// row once more, which is not stored again.
template <typename T>
inline void dots(const float* u, int64_t rows, const T* x, int64_t tokens, int64_t width, float* result) {
  for (int64_t token = 0; token < tokens; token += kFour) {
    const T* b[kFour];
    for (int64_t j = 0; j < kFour; ++j) b[j] = x + min_of(token + j, tokens - 1) * width;
    const auto some = static_cast<__mmask8>((1U << min_of(kFour, tokens - token)) - 1U);
    for (int64_t row = 0; row < rows; row += kSix) {
      const float* a[kSix];
      for (int64_t i = 0; i < kSix; ++i) a[i] = u + min_of(row + i, rows - 1) * width;
      __m512 sum[kSix][kFour];
      for (auto& of_row : sum) {
        for (__m512& one : of_row) one = _mm512_setzero_ps();
      }
      over_sixteens(width, [&](const auto& lanes, int64_t c) {
        __m512 right[kFour];
        for (int64_t j = 0; j < kFour; ++j) right[j] = lanes.load(b[j] + c);
        for (int64_t i = 0; i < kSix; ++i) {
          const __m512 left = lanes.load(a[i] + c);
          for (int64_t j = 0; j < kFour; ++j) sum[i][j] = _mm512_fmadd_ps(left, right[j], sum[i][j]);
        }
      });
      for (int64_t i = 0; i < min_of(kSix, rows - row); ++i) {
        _mm_mask_storeu_ps(result + (row + i) * tokens + token, some, sums_of_four(sum[i]));
      }
    }
  }
}

// A matrix whose number of row i and column j lies at data + i * row_step + j * column_step.
struct Shares {
  const float* data;
  int64_t row_step, column_step;
};

// Columns [c, c + 16 * kVectors) of mix(), below, in rows [row, row + kSix).
template <int64_t kVectors, typename Lanes, typename T, typename R>
[[gnu::always_inline]] inline void mix_block(const Lanes& lanes, const Shares& shares, int64_t row,
                                             int64_t rows, const T* x, int64_t count, int64_t width,
                                             int64_t c, R* result, int64_t step) {
  const float* a[kSix];
  for (int64_t i = 0; i < kSix; ++i) a[i] = shares.data + min_of(row + i, rows - 1) * shares.row_step;
  __m512 sum[kSix][kVectors];
  for (auto& of_row : sum) {
    for (__m512& one : of_row) one = _mm512_setzero_ps();
  }
  const T* right = x + c;
  for (int64_t k = 0; k < count; ++k, right += width) {
    __m512 b[kVectors];
    for (int64_t j = 0; j < kVectors; ++j) b[j] = lanes.load(right + 16 * j);
    for (int64_t i = 0; i < kSix; ++i) {
      const __m512 share = _mm512_set1_ps(a[i][k * shares.column_step]);
      for (int64_t j = 0; j < kVectors; ++j) sum[i][j] = _mm512_fmadd_ps(share, b[j], sum[i][j]);
    }
  }
  for (int64_t i = 0; i < min_of(kSix, rows - row); ++i) {
    for (int64_t j = 0; j < kVectors; ++j) lanes.store(result + (row + i) * step + c + 16 * j, sum[i][j]);
  }
}

// result [rows, width], its rows `step` apart, = shares [rows, count] x [count, width].
template <typename T, typename R>
inline void mix(const Shares& shares, int64_t rows, const T* x, int64_t count, int64_t width, R* result,
                int64_t step) {
  const auto over_rows = [&](const auto& block) {
    for (int64_t row = 0; row < rows; row += kSix) block(row);
  };
  int64_t c = 0;
  for (; c + 16 * kFour <= width; c += 16 * kFour) {
    over_rows(
        [&](int64_t row) { mix_block<kFour>(Whole(), shares, row, rows, x, count, width, c, result, step); });
  }
  for (; c + 16 <= width; c += 16) {
    over_rows(
        [&](int64_t row) { mix_block<1>(Whole(), shares, row, rows, x, count, width, c, result, step); });
  }
  if (c == width) return;
  const Rest rest{first_lanes(width - c)};
  over_rows([&](int64_t row) { mix_block<1>(rest, shares, row, rows, x, count, width, c, result, step); });
}

// Rows `step` apart as fp32 without gaps.
template <typename T>
inline void widen(const T* from, int64_t rows, int64_t width, int64_t step, float* to) {
  for (int64_t row = 0; row < rows; ++row, from += step, to += width) {
    over_sixteens(width, [&](const auto& lanes, int64_t c) { lanes.store(to + c, lanes.load(from + c)); });
  }
}

constexpr float kLowest = -3.4e38F;
inline __m512 or_lowest(const Whole&, __m512 v) { return v; }
inline __m512 or_lowest(const Rest& rest, __m512 v) {
  return _mm512_mask_mov_ps(_mm512_set1_ps(kLowest), rest.mask, v);
}

// softmax(scale * s) in place of s [tokens]. A NaN makes all of it NaN.
inline void softmax(float* s, int64_t tokens, float scale) {
  const __m512 by = _mm512_set1_ps(scale);
  __m512 most = _mm512_set1_ps(kLowest);
  over_sixteens(tokens, [&](const auto& lanes, int64_t t) {
    const __m512 scaled = _mm512_mul_ps(lanes.load(s + t), by);
    lanes.store(s + t, scaled);
    most = _mm512_max_ps(most, or_lowest(lanes, scaled));
  });
  const __m512 top = _mm512_set1_ps(_mm512_reduce_max_ps(most));
  __m512 sum = _mm512_setzero_ps();
  over_sixteens(tokens, [&](const auto& lanes, int64_t t) {
    const __m512 e = lanes.kept(precise_exp(_mm512_sub_ps(lanes.load(s + t), top)));
    lanes.store(s + t, e);
    sum = _mm512_add_ps(sum, e);
  });
  const __m512 share = _mm512_set1_ps(1.0F / _mm512_reduce_add_ps(sum));
  over_sixteens(tokens, [&](const auto& lanes, int64_t t) {
    lanes.store(s + t, _mm512_mul_ps(lanes.load(s + t), share));
  });
}

// ds = scale * p * (dp - sum(p * dp)) in place of dp [tokens].
inline void softmax_back(const float* p, float* dp, int64_t tokens, float scale) {
  __m512 sum = _mm512_setzero_ps();
  over_sixteens(tokens, [&](const auto& lanes, int64_t t) {
    sum = _mm512_fmadd_ps(lanes.load(p + t), lanes.load(dp + t), sum);
  });
  const __m512 total = _mm512_set1_ps(_mm512_reduce_add_ps(sum)), by = _mm512_set1_ps(scale);
  over_sixteens(tokens, [&](const auto& lanes, int64_t t) {
    const __m512 slope = _mm512_mul_ps(_mm512_sub_ps(lanes.load(dp + t), total), by);
    lanes.store(dp + t, _mm512_mul_ps(lanes.load(p + t), slope));
  });
}

}  // namespace

template <typename T>
void KeylessImage<T>::forward(const T* x, const T* u, const KeylessShape& shape, float* p, T* z,
                              float* scratch) {
  const auto [rows, tokens, width, step, scale] = shape;
  widen(u, rows, width, step, scratch);
  dots(scratch, rows, x, tokens, width, p);
  for (int64_t row = 0; row < rows; ++row) softmax(p + row * tokens, tokens, scale);
  mix({p, tokens, 1}, rows, x, tokens, width, z, step);
}

// x's gradient is one product: [ds, p]^T of [u, dz].
template <typename T>
void KeylessImage<T>::backward(const T* x, const T* u, const T* dz, const float* p, const KeylessShape& shape,
                               T* du, T* dx, float* scratch) {
  const auto [rows, tokens, width, step, scale] = shape;
  float *wide_u = scratch, *wide_dz = wide_u + rows * width, *ds = wide_dz + rows * width,
        *p_below = ds + rows * tokens;
  widen(dz, rows, width, step, wide_dz);
  dots(wide_dz, rows, x, tokens, width, ds);
  for (int64_t row = 0; row < rows; ++row) softmax_back(p + row * tokens, ds + row * tokens, tokens, scale);
  mix({ds, tokens, 1}, rows, x, tokens, width, du, step);
  if (dx == nullptr) return;
  widen(u, rows, width, step, wide_u);
  widen(p, rows, tokens, tokens, p_below);
  mix({ds, 1, tokens}, tokens, wide_u, 2 * rows, width, dx, width);
}

}  // namespace tessera::ops::avx512
