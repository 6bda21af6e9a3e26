// The epilogue of a product, 16 columns of a row at a time. Private to kernels for AVX-512; like
// avx512_math.h without any standard header.
#pragma once

#include "tessera/ops/avx512_math.h"
#include "tessera/ops/epilogue.h"

namespace tessera::ops::avx512 {
namespace {

/// Terms of e^x: as many as the dtype of the result can show.
template <typename T>
constexpr int kTermsFor = sizeof(T) == 4 ? 7 : 6;

/// `c`: the 16 sums that begin at element `at` of the result, in `column`; `mask` has those that exist.
template <typename T>
inline void finish(const Epilogue<T>& e, __m512 c, int64_t at, int64_t column, __mmask16 mask) {
  if (e.bias != nullptr) {
    c = _mm512_add_ps(c, load(e.bias + column, mask));
  }
  if (e.linear != nullptr) {
    store(e.linear + at, mask, c);
    c = gelu<kTermsFor<T>>(c);
  }
  if (e.residual != nullptr) {
    c = _mm512_add_ps(c, load(e.residual + at, mask));
  }
  store(e.out + at, mask, c);
}

/// out = gradient * gelu'(linear), element by element.
template <typename T>
inline void gelu_backward_of(const T* gradient, const T* linear, T* out, int64_t count) {
  for (int64_t i = 0; i < count; i += 16) {
    const __mmask16 mask = first_lanes(count - i);
    const __m512 derivative = gelu_derivative<kTermsFor<T>>(load(linear + i, mask));
    store(out + i, mask, _mm512_mul_ps(derivative, load(gradient + i, mask)));
  }
}

}  // namespace
}  // namespace tessera::ops::avx512
