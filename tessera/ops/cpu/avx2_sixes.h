// SPDX-License-Identifier: Apache-2.0
// A left factor in panels of 6 columns, as many as a product on AVX2 has rows. Private to kernels for AVX2;
// like vectors.h without any standard header.
#pragma once

#include "tessera/ops/cpu/vector_math.h"

namespace tessera::ops::vectors {
namespace {

constexpr int64_t kSix = 6;

/// Columns of w [k_size, w_row] as panels of 6, words first, `panel` elements apart; the last is not filled
/// up. Adds to `sums` what they sum to over k. kSlab: words of k whose rows all columns are read from before
/// the next, so that they stay in the caches.
template <int64_t kSlab, typename T>
inline void pack_sixes(const T* w, int64_t w_row, int64_t k_size, int64_t columns, float* packed,
                       int64_t panel, float* sums) {
  const int64_t end = (k_size - 1) * w_row + columns;  // of what may be read
  for (int64_t slab = 0; slab < k_size; slab += kSlab) {
    for (int64_t column = 0; column < columns; column += kSix) {
      const int64_t some = min_of(kSix, columns - column);
      // Words whose 8 columns exist in memory. Two of them end up in the place of the next word, which
      // overwrites them: so the last word is not among these.
      const int64_t room = end - column - 8;
      const int64_t whole = min_of(room < 0 ? 0 : room / w_row + 1, k_size - 1);
      const int64_t stop = min_of(slab + kSlab, k_size);
      float* out = packed + column / kSix * panel + slab * kSix;
      const T* row = w + slab * w_row + column;
      float sum[8] = {};
      for (int64_t i = 0; i < some; ++i) sum[i] = sums[column + i];
      __m256 added = _mm256_loadu_ps(sum);
      int64_t k = slab;
      for (; k < min_of(stop, whole); ++k, row += w_row, out += kSix) {
        __builtin_prefetch(row + kSlab * w_row, 0, 2);
        const __m256 eight = load_eight(row);
        added = _mm256_add_ps(added, eight);
        _mm256_storeu_ps(out, eight);
      }
      for (; k < stop; ++k, row += w_row, out += kSix) {
        T given[8] = {};
        for (int64_t i = 0; i < some; ++i) given[i] = row[i];
        float eight[8];
        _mm256_storeu_ps(eight, load_eight(given));
        added = _mm256_add_ps(added, _mm256_loadu_ps(eight));
        for (int64_t i = 0; i < kSix; ++i) out[i] = eight[i];
      }
      _mm256_storeu_ps(sum, added);
      for (int64_t i = 0; i < some; ++i) sums[column + i] = sum[i];
    }
  }
}

}  // namespace
}  // namespace tessera::ops::vectors
