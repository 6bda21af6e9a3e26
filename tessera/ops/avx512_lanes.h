// A row by vectors: kernels written once for whole vectors and for what is left of a row. Private to the
// files that compile it; like avx512_math.h without any standard header.
#pragma once

#include "tessera/ops/avx512_math.h"

namespace tessera::ops::avx512 {
namespace {

// 16 columns at a time: all of them, or what is left.
struct Whole {
  template <typename T>
  __m512 load(const T* p) const {
    return avx512::load(p);
  }
  template <typename T>
  void store(T* p, __m512 v) const {
    avx512::store(p, v);
  }
  // Past the caches; p: a multiple of the vector's size.
  void stream(float* p, __m512 v) const { _mm512_stream_ps(p, v); }
  void stream(uint16_t* p, __m512 v) const { _mm256_stream_si256(reinterpret_cast<__m256i*>(p), to_bf16(v)); }
  __m512 kept(__m512 v) const { return v; }
};

struct Rest {
  __mmask16 mask;
  template <typename T>
  __m512 load(const T* p) const {
    return avx512::load(p, mask);
  }
  template <typename T>
  void store(T* p, __m512 v) const {
    avx512::store(p, mask, v);
  }
  template <typename T>
  void stream(T* p, __m512 v) const {
    avx512::store(p, mask, v);
  }
  __m512 kept(__m512 v) const { return _mm512_maskz_mov_ps(mask, v); }
};

}  // namespace
}  // namespace tessera::ops::avx512
