// SPDX-License-Identifier: Apache-2.0
// Products of bf16 by vdpbf16ps: a word is two of k.
#include "tessera/ops/cpu/avx512_pack.h"

namespace tessera::ops::vectors {
namespace {

inline __m512 multiply_add(__m512 sum, __m512i left, __m512i right, uint16_t) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(left), reinterpret_cast<__m512bh>(right));
}

inline __m512i load_words(const uint16_t* p, int64_t count) {
  const auto mask = static_cast<__mmask32>((uint64_t{1} << min_of(count, 32)) - 1);
  return _mm512_maskz_loadu_epi16(mask, p);
}

inline void columns_of(const uint16_t* w, int64_t row_step, int64_t rows, __mmask16 columns, __m512i (&r)[16],
                       __m512* sum) {
  interleave(w, row_step, rows, columns, r, sum);
}

// 16 words of k x 32 columns of w, all of which exist, as two panels. `sums`: adds the columns' sums.
inline void interleave_pair(const uint16_t* w, int64_t row_step, uint16_t* low, uint16_t* high,
                            __m512* sums) {
  // Column j of the even row, then of the odd row: 16 columns of each from the first on, or from the 17th.
  const __m512i columns = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const __m512i first = _mm512_or_si512(columns, _mm512_slli_epi32(columns, 16)),
                odd = _mm512_set1_epi32(32 << 16), second = _mm512_set1_epi32(16 << 16 | 16);
  const __m512i from_first = _mm512_add_epi16(first, odd), from_second = _mm512_add_epi16(from_first, second);
  const __m512i ones = _mm512_set1_epi32(0x3F803F80);
  for (int i = 0; i < 16; ++i, w += 2 * row_step) {
    const __m512i a = _mm512_loadu_si512(w), b = _mm512_loadu_si512(w + row_step);
    const __m512i left = _mm512_permutex2var_epi16(a, from_first, b),
                  right = _mm512_permutex2var_epi16(a, from_second, b);
    _mm512_storeu_si512(low + 32 * i, left);
    _mm512_storeu_si512(high + 32 * i, right);
    if (sums == nullptr) continue;
    sums[0] = multiply_add(sums[0], left, ones, uint16_t());
    sums[1] = multiply_add(sums[1], right, ones, uint16_t());
  }
}

}  // namespace
}  // namespace tessera::ops::vectors

#include "tessera/ops/cpu/vector_blocks.h"

namespace tessera::ops::vectors {
template struct Gemm<CompiledFor, uint16_t>;
}  // namespace tessera::ops::vectors
