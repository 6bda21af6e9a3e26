// SPDX-License-Identifier: Apache-2.0
// Packing of bf16 factors: pairs of k side by side, as tiles (Note [Tiles] in amx_gemm.h) and vdpbf16ps want
// them. Private to kernels for AVX-512 with BW and VL; like vectors.h without any standard header.
#pragma once

#include "tessera/ops/cpu/vector_math.h"

namespace tessera::ops::vectors {
namespace {

constexpr int64_t kTile = 512;  // elements of 16 pairs of k x 16 columns

inline void store_tile(const __m512i (&r)[16], uint16_t* out) {
  for (int i = 0; i < 16; ++i) {
    _mm512_storeu_si512(out + 32 * i, r[i]);
  }
}

// 32 rows x 16 columns of w as 16 rows of pairs; what lies outside is zero. `sum`: adds the columns' sums.
inline void interleave(const uint16_t* w, int64_t row_step, int64_t rows, __mmask16 columns, __m512i (&r)[16],
                       __m512* sum) {
  for (int i = 0; i < 16; ++i) {
    const int64_t row = 2 * i;
    const __m512i even = _mm512_cvtepu16_epi32(
        row < rows ? _mm256_maskz_loadu_epi16(columns, w + row * row_step) : _mm256_setzero_si256());
    const __m512i odd = _mm512_slli_epi32(
        _mm512_cvtepu16_epi32(row + 1 < rows ? _mm256_maskz_loadu_epi16(columns, w + (row + 1) * row_step)
                                             : _mm256_setzero_si256()),
        16);
    if (sum != nullptr) {
      const __m512i high = _mm512_slli_epi32(even, 16);
      *sum = _mm512_add_ps(*sum, _mm512_add_ps(_mm512_castsi512_ps(high), _mm512_castsi512_ps(odd)));
    }
    r[i] = _mm512_or_si512(even, odd);
  }
}

// Right factor B[k][n] = w[n * w_row + k]: a transpose.
inline void pack_right_transposed(const uint16_t* w, int64_t w_row, int64_t n_size, int64_t k_size,
                                  uint16_t* packed) {
  for (int64_t n = 0; n < padded(n_size); n += 16) {
    for (int64_t k = 0; k < k_size; k += 32, packed += kTile) {
      const auto mask = static_cast<__mmask32>((uint64_t{1} << min_of(k_size - k, 32)) - 1);
      __m512i r[16];
      for (int i = 0; i < 16; ++i) {
        r[i] =
            n + i < n_size ? _mm512_maskz_loadu_epi16(mask, w + (n + i) * w_row + k) : _mm512_setzero_si512();
      }
      transpose(r);
      store_tile(r, packed);
    }
  }
}

// Right factor B[k][n] = w[k * w_row + n].
inline void pack_right(const uint16_t* w, int64_t w_row, int64_t k_size, int64_t n_size, uint16_t* packed) {
  for (int64_t n = 0; n < padded(n_size); n += 16) {
    const __mmask16 mask = n < n_size ? first_lanes(n_size - n) : __mmask16(0);
    for (int64_t k = 0; k < k_size; k += 32, packed += kTile) {
      __m512i r[16];
      interleave(w + k * w_row + n, w_row, k_size - k, mask, r, nullptr);
      store_tile(r, packed);
    }
  }
}

}  // namespace
}  // namespace tessera::ops::vectors
