// Products of fp32 by multiply-adds: a word is one k. For CPUs without bf16 instructions too.
#include "tessera/ops/avx512_pack.h"

namespace tessera::ops::avx512 {
namespace {

inline __m512 multiply_add(__m512 sum, __m512i left, __m512i right, float) {
  return _mm512_fmadd_ps(_mm512_castsi512_ps(left), _mm512_castsi512_ps(right), sum);
}

inline __m512i load_words(const float* p, int64_t count) {
  return _mm512_maskz_loadu_epi32(first_lanes(count), p);
}

// 16 rows x 16 columns of w; what lies outside is zero. `sum`: adds the columns' sums.
inline void columns_of(const float* w, int64_t row_step, int64_t rows, __mmask16 columns, __m512i (&r)[16],
                       __m512* sum) {
  for (int i = 0; i < 16; ++i) {
    const __m512 row = i < rows ? _mm512_maskz_loadu_ps(columns, w + i * row_step) : _mm512_setzero_ps();
    if (sum != nullptr) *sum = _mm512_add_ps(*sum, row);
    r[i] = _mm512_castps_si512(row);
  }
}

// 16 words of k x 32 columns of w, all of which exist, as two panels. `sums`: adds the columns' sums.
inline void interleave_pair(const float* w, int64_t row_step, float* low, float* high, __m512* sums) {
  for (int i = 0; i < 16; ++i, w += row_step) {
    const __m512 left = _mm512_loadu_ps(w), right = _mm512_loadu_ps(w + 16);
    _mm512_storeu_ps(low + 16 * i, left);
    _mm512_storeu_ps(high + 16 * i, right);
    if (sums == nullptr) continue;
    sums[0] = _mm512_add_ps(sums[0], left);
    sums[1] = _mm512_add_ps(sums[1], right);
  }
}

}  // namespace
}  // namespace tessera::ops::avx512

#include "tessera/ops/avx512_blocks.h"

namespace tessera::ops::avx512 {
template struct Gemm<float>;
}  // namespace tessera::ops::avx512
