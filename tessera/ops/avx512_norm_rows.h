// Layer normalisation, written once for rows of bf16 and of fp32. Private to the two files that compile it;
// like avx512_math.h without any standard header.
#pragma once

#include "tessera/ops/avx512_lanes.h"

namespace tessera::ops::avx512 {
namespace {

// body(lanes, first column, which of four sums: additions do not wait for each other).
template <typename Body>
[[gnu::always_inline]] inline void over_columns(int64_t width, const Body& body) {
  int64_t j = 0;
  for (; j + 64 <= width; j += 64) {
    body(Whole(), j, 0);
    body(Whole(), j + 16, 1);
    body(Whole(), j + 32, 2);
    body(Whole(), j + 48, 3);
  }
  for (; j + 16 <= width; j += 16) body(Whole(), j, 0);
  if (j < width) body(Rest{first_lanes(width - j)}, j, 1);
}

struct FourSums {
  __m512 s[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};
  float total() const {
    return _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(s[0], s[1]), _mm512_add_ps(s[2], s[3])));
  }
};

template <typename T>
inline void norm_rows(const T* x, int64_t rows, int64_t width, const T* weight, const T* bias, float epsilon,
                      T* y, float* stats) {
  const float share = 1.0F / static_cast<float>(width);
  for (int64_t row = 0; row < rows; ++row, x += width, y += width, stats += 2) {
    FourSums sums, squares;
    over_columns(width, [&](const auto& lanes, int64_t j, int which) {
      sums.s[which] = _mm512_add_ps(sums.s[which], lanes.load(x + j));
    });
    const __m512 mean = _mm512_set1_ps(sums.total() * share);
    over_columns(width, [&](const auto& lanes, int64_t j, int which) {
      const __m512 centred = lanes.kept(_mm512_sub_ps(lanes.load(x + j), mean));
      squares.s[which] = _mm512_fmadd_ps(centred, centred, squares.s[which]);
    });
    stats[0] = _mm512_cvtss_f32(mean);
    stats[1] = 1.0F / __builtin_sqrtf(squares.total() * share + epsilon);
    const __m512 rstd = _mm512_set1_ps(stats[1]);
    over_columns(width, [&](const auto& lanes, int64_t j, int) {
      const __m512 normed = _mm512_mul_ps(_mm512_sub_ps(lanes.load(x + j), mean), rstd);
      lanes.store(y + j, _mm512_fmadd_ps(normed, lanes.load(weight + j), lanes.load(bias + j)));
    });
  }
}

template <typename T>
inline void norm_rows_backward(const T* gradient, const T* more, const T* x, int64_t rows, int64_t width,
                               const T* weight, const float* stats, T* dx, float* weight_sums,
                               float* bias_sums) {
  const float share = 1.0F / static_cast<float>(width);
  for (int64_t row = 0; row < rows; ++row, gradient += width, x += width, dx += width, stats += 2) {
    const __m512 mean = _mm512_set1_ps(stats[0]), rstd = _mm512_set1_ps(stats[1]);
    FourSums sums, products;
    // (Lanes beyond the row: a gradient of zero.)
    over_columns(width, [&](const auto& lanes, int64_t j, int which) {
      const __m512 dy = lanes.load(gradient + j);
      const __m512 normed = _mm512_mul_ps(_mm512_sub_ps(lanes.load(x + j), mean), rstd);
      const __m512 inner = _mm512_mul_ps(dy, lanes.load(weight + j));
      sums.s[which] = _mm512_add_ps(sums.s[which], inner);
      products.s[which] = _mm512_fmadd_ps(inner, normed, products.s[which]);
      lanes.store(weight_sums + j, _mm512_fmadd_ps(dy, normed, lanes.load(weight_sums + j)));
      lanes.store(bias_sums + j, _mm512_add_ps(dy, lanes.load(bias_sums + j)));
    });
    const __m512 mean_inner = _mm512_set1_ps(sums.total() * share);
    const __m512 mean_product = _mm512_set1_ps(products.total() * share);
    over_columns(width, [&](const auto& lanes, int64_t j, int) {
      const __m512 normed = _mm512_mul_ps(_mm512_sub_ps(lanes.load(x + j), mean), rstd);
      const __m512 inner = _mm512_mul_ps(lanes.load(gradient + j), lanes.load(weight + j));
      const __m512 centred =
          _mm512_sub_ps(_mm512_sub_ps(inner, mean_inner), _mm512_mul_ps(normed, mean_product));
      const __m512 added = more == nullptr ? _mm512_setzero_ps() : lanes.load(more + j);
      lanes.store(dx + j, _mm512_fmadd_ps(centred, rstd, added));
    });
    if (more != nullptr) more += width;
  }
}

}  // namespace
}  // namespace tessera::ops::avx512
