// SPDX-License-Identifier: Apache-2.0
// vectors.h on AVX-512: a vector is a register.
#pragma once

#include <immintrin.h>
#include <stdint.h>

#include "tessera/ops/cpu/vector_sets.h"

namespace tessera::ops::vectors {
namespace {

using CompiledFor = Avx512;

using Floats = __m512;
using Words = __m512i;
using Mask = __mmask16;

inline Floats zeros() { return _mm512_setzero_ps(); }
inline Words no_words() { return _mm512_setzero_si512(); }
inline Floats broadcast(float x) { return _mm512_set1_ps(x); }
inline Words broadcast_word(const void* p) {
  int word;
  __builtin_memcpy(&word, p, sizeof(word));
  return _mm512_set1_epi32(word);
}
inline Words as_words(Floats v) { return _mm512_castps_si512(v); }
inline Floats as_floats(Words v) { return _mm512_castsi512_ps(v); }

inline Floats fmadd(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
inline Floats fmsub(Floats a, Floats b, Floats c) { return _mm512_fmsub_ps(a, b, c); }
inline Floats fnmadd(Floats a, Floats b, Floats c) { return _mm512_fnmadd_ps(a, b, c); }
inline Floats max(Floats a, Floats b) { return _mm512_max_ps(a, b); }
inline Floats min(Floats a, Floats b) { return _mm512_min_ps(a, b); }
inline Floats abs(Floats v) { return _mm512_abs_ps(v); }
inline Floats reciprocal(Floats v) {
  const Floats guess = _mm512_rcp14_ps(v);
  return guess * _mm512_fnmadd_ps(v, guess, broadcast(2.0F));
}
inline Floats to_nearest(Floats v) {
  return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline Floats above_floor(Floats v) { return _mm512_reduce_ps(v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); }
inline Floats times_power(Floats p, Floats n, Floats exponent) {
  const Mask representable = _mm512_cmp_ps_mask(exponent, broadcast(-126.0F), _CMP_NLT_UQ);
  return _mm512_maskz_scalef_ps(representable, p, n);
}

inline float first_of(Floats v) { return _mm512_cvtss_f32(v); }
inline float reduce_add(Floats v) { return _mm512_reduce_add_ps(v); }
inline float reduce_max(Floats v) { return _mm512_reduce_max_ps(v); }
/// The numbers that each of four vectors adds up to, the first `count` of them.
inline void store_sums_of_four(float* p, int64_t count, const Floats* v) {
  __m128 quarter[4];
  for (int i = 0; i < 4; ++i) {
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(v[i]), _mm512_extractf32x8_ps(v[i], 1));
    quarter[i] = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  }
  const __m128 sums = _mm_hadd_ps(_mm_hadd_ps(quarter[0], quarter[1]), _mm_hadd_ps(quarter[2], quarter[3]));
  _mm_mask_storeu_ps(p, static_cast<__mmask8>((1U << count) - 1U), sums);
}

inline Mask positive_or_nan(Floats v) { return _mm512_cmp_ps_mask(v, zeros(), _CMP_NLE_UQ); }
inline Floats kept(Mask mask, Floats v) { return _mm512_maskz_mov_ps(mask, v); }
inline Floats choose(Mask mask, Floats then, Floats otherwise) {
  return _mm512_mask_mov_ps(otherwise, mask, then);
}
inline Floats by_sign(Floats sign, Floats negative, Floats otherwise) {
  return _mm512_mask_blend_ps(_mm512_movepi32_mask(_mm512_castps_si512(sign)), otherwise, negative);
}

/// The nearest numbers of bf16, ties to even; NaN stays NaN. (Some of the files are compiled for CPUs without
/// an instruction for it.)
inline __m256i to_bf16(Floats v) {
#if defined(__AVX512BF16__)
  return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(v));
#else
  const Words bits = _mm512_castps_si512(v);
  const Words odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const Words rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
  const Mask nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  const Words words = _mm512_mask_mov_epi32(rounded, nan, _mm512_set1_epi32(0x7FC00000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(words, 16));
#endif
}
inline Floats from_bf16(__m256i v) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16));
}

inline Floats load(const float* p) { return _mm512_loadu_ps(p); }
inline Floats load(const float* p, Mask mask) { return _mm512_maskz_loadu_ps(mask, p); }
inline Floats load(const uint16_t* p) {
  return from_bf16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline Floats load(const uint16_t* p, Mask mask) { return from_bf16(_mm256_maskz_loadu_epi16(mask, p)); }
inline Words load_words(const void* p) { return _mm512_loadu_si512(p); }

inline void store(float* p, Floats v) { _mm512_storeu_ps(p, v); }
inline void store(float* p, Mask mask, Floats v) { _mm512_mask_storeu_ps(p, mask, v); }
inline void store(uint16_t* p, Floats v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_bf16(v)); }
inline void store(uint16_t* p, Mask mask, Floats v) { _mm256_mask_storeu_epi16(p, mask, to_bf16(v)); }
inline void store_words(void* p, Words v) { _mm512_storeu_si512(p, v); }
inline void stream(float* p, Floats v) { _mm512_stream_ps(p, v); }
inline void stream(uint16_t* p, Floats v) { _mm256_stream_si256(reinterpret_cast<__m256i*>(p), to_bf16(v)); }

/// Transposes 16 x 16 words.
inline void transpose(Words (&r)[16]) {
  Words t[16];
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int j = 0; j < 4; ++j) {
    t[j] = _mm512_shuffle_i32x4(r[j], r[4 + j], 0x88);
    t[4 + j] = _mm512_shuffle_i32x4(r[j], r[4 + j], 0xDD);
    t[8 + j] = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], 0x88);
    t[12 + j] = _mm512_shuffle_i32x4(r[8 + j], r[12 + j], 0xDD);
  }
  for (int j = 0; j < 4; ++j) {
    r[j] = _mm512_shuffle_i32x4(t[j], t[8 + j], 0x88);
    r[8 + j] = _mm512_shuffle_i32x4(t[j], t[8 + j], 0xDD);
    r[4 + j] = _mm512_shuffle_i32x4(t[4 + j], t[12 + j], 0x88);
    r[12 + j] = _mm512_shuffle_i32x4(t[4 + j], t[12 + j], 0xDD);
  }
}

/// Keeps the compiler from dropping what makes this number.
inline void keep(Floats& v) { asm volatile("" : "+v"(v)); }

}  // namespace
}  // namespace tessera::ops::vectors
