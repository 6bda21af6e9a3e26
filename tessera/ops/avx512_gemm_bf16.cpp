// Products of bf16 by vdpbf16ps: a word is two of k.
#include "tessera/ops/avx512_pack.h"

namespace tessera::ops::avx512 {
namespace {

inline __m512 multiply_add(__m512 sum, __m512i left, __m512i right, uint16_t) {
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(left), reinterpret_cast<__m512bh>(right));
}

inline __m512i load_words(const uint16_t* p, int64_t count) {
  const auto mask = static_cast<__mmask32>((uint64_t{1} << min_of(count, 32)) - 1);
  return _mm512_maskz_loadu_epi16(mask, p);
}

}  // namespace
}  // namespace tessera::ops::avx512

#include "tessera/ops/avx512_blocks.h"

namespace tessera::ops::avx512 {
template struct Gemm<uint16_t>;
}  // namespace tessera::ops::avx512
