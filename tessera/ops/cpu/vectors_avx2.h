// SPDX-License-Identifier: Apache-2.0
// vectors.h on AVX2 with FMA: a vector is two registers.
#pragma once

#include <immintrin.h>
#include <stdint.h>

#include "tessera/ops/cpu/vector_sets.h"

namespace tessera::ops::vectors {
namespace {

using CompiledFor = Avx2;

struct Floats {
  __m256 low, high;
};
struct Words {
  __m256i low, high;
};
using Mask = uint16_t;  // a bit for each lane

// Of a function of registers one of vectors.
template <typename Half>
[[gnu::always_inline]] inline Floats of_both(Floats a, const Half& half) {
  return {half(a.low), half(a.high)};
}
template <typename Half>
[[gnu::always_inline]] inline Floats of_both(Floats a, Floats b, const Half& half) {
  return {half(a.low, b.low), half(a.high, b.high)};
}

inline Floats zeros() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
inline Words no_words() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
inline Floats broadcast(float x) {
  const __m256 all = _mm256_set1_ps(x);
  return {all, all};
}
inline Words broadcast_word(const void* p) {
  int word;
  __builtin_memcpy(&word, p, sizeof(word));
  const __m256i all = _mm256_set1_epi32(word);
  return {all, all};
}
inline Words as_words(Floats v) { return {_mm256_castps_si256(v.low), _mm256_castps_si256(v.high)}; }
inline Floats as_floats(Words v) { return {_mm256_castsi256_ps(v.low), _mm256_castsi256_ps(v.high)}; }

inline Floats operator+(Floats a, Floats b) {
  return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}
inline Floats operator-(Floats a, Floats b) {
  return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
}
inline Floats operator*(Floats a, Floats b) {
  return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}
inline Floats fmadd(Floats a, Floats b, Floats c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
inline Floats fmsub(Floats a, Floats b, Floats c) {
  return {_mm256_fmsub_ps(a.low, b.low, c.low), _mm256_fmsub_ps(a.high, b.high, c.high)};
}
inline Floats fnmadd(Floats a, Floats b, Floats c) {
  return {_mm256_fnmadd_ps(a.low, b.low, c.low), _mm256_fnmadd_ps(a.high, b.high, c.high)};
}
inline Floats max(Floats a, Floats b) {
  return of_both(a, b, [](__m256 x, __m256 y) { return _mm256_max_ps(x, y); });
}
inline Floats min(Floats a, Floats b) {
  return of_both(a, b, [](__m256 x, __m256 y) { return _mm256_min_ps(x, y); });
}
inline Floats abs(Floats v) {
  return of_both(v, [](__m256 x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0F), x); });
}
// (_mm256_rcp_ps() gives other bits on another maker's CPU.)
inline Floats reciprocal(Floats v) {
  return of_both(v, [](__m256 x) { return _mm256_div_ps(_mm256_set1_ps(1.0F), x); });
}
inline Floats to_nearest(Floats v) {
  return of_both(v,
                 [](__m256 x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); });
}
inline Floats above_floor(Floats v) {
  return of_both(v, [](__m256 x) { return _mm256_sub_ps(x, _mm256_floor_ps(x)); });
}
inline Floats times_power(Floats p, Floats n, Floats exponent) {
  const auto half = [](__m256 x, __m256 power, __m256 given) {
    const __m256 representable = _mm256_cmp_ps(given, _mm256_set1_ps(-126.0F), _CMP_NLT_UQ);
    // What is too large becomes infinite, as on AVX-512. (The order of min's operands keeps a NaN.)
    const __m256 limited = _mm256_min_ps(_mm256_set1_ps(128.0F), _mm256_floor_ps(power));
    const __m256i to_add = _mm256_slli_epi32(_mm256_cvttps_epi32(limited), 23);
    const __m256i one = _mm256_castps_si256(_mm256_set1_ps(1.0F));
    return _mm256_and_ps(representable, _mm256_mul_ps(x, _mm256_castsi256_ps(_mm256_add_epi32(one, to_add))));
  };
  return {half(p.low, n.low, exponent.low), half(p.high, n.high, exponent.high)};
}

inline float first_of(Floats v) { return _mm256_cvtss_f32(v.low); }
inline __m128 quarter_sum(Floats v) {
  const __m256 half = _mm256_add_ps(v.low, v.high);
  return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}
inline float reduce_add(Floats v) {
  const __m128 quarter = quarter_sum(v), pair = _mm_add_ps(quarter, _mm_movehl_ps(quarter, quarter));
  return _mm_cvtss_f32(_mm_add_ss(pair, _mm_movehdup_ps(pair)));
}
inline float reduce_max(Floats v) {
  const __m256 half = _mm256_max_ps(v.low, v.high);
  const __m128 quarter = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  const __m128 pair = _mm_max_ps(quarter, _mm_movehl_ps(quarter, quarter));
  return _mm_cvtss_f32(_mm_max_ss(pair, _mm_movehdup_ps(pair)));
}
inline void store_sums_of_four(float* p, int64_t count, const Floats* v) {
  const __m128 sums = _mm_hadd_ps(_mm_hadd_ps(quarter_sum(v[0]), quarter_sum(v[1])),
                                  _mm_hadd_ps(quarter_sum(v[2]), quarter_sum(v[3])));
  if (count == 4) return _mm_storeu_ps(p, sums);
  const __m128i lanes = _mm_set_epi32(3, 2, 1, 0);
  _mm_maskstore_ps(p, _mm_cmpgt_epi32(_mm_set1_epi32(static_cast<int>(count)), lanes), sums);
}

// All bits of a lane whose bit is set.
inline Words lanes_of(Mask mask) {
  const auto half = [](int bits) {
    const __m256i own = _mm256_set_epi32(128, 64, 32, 16, 8, 4, 2, 1);
    return _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(bits), own), own);
  };
  return {half(mask), half(mask >> 8)};
}
inline Mask positive_or_nan(Floats v) {
  const auto half = [](__m256 x) {
    return static_cast<unsigned>(_mm256_movemask_ps(_mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_NLE_UQ)));
  };
  return static_cast<Mask>(half(v.low) | half(v.high) << 8);
}
inline Floats kept(Mask mask, Floats v) {
  return of_both(v, as_floats(lanes_of(mask)),
                 [](__m256 x, __m256 lanes) { return _mm256_and_ps(x, lanes); });
}
inline Floats choose(Mask mask, Floats then, Floats otherwise) {
  const Floats lanes = as_floats(lanes_of(mask));
  return {_mm256_blendv_ps(otherwise.low, then.low, lanes.low),
          _mm256_blendv_ps(otherwise.high, then.high, lanes.high)};
}
inline Floats by_sign(Floats sign, Floats negative, Floats otherwise) {
  return {_mm256_blendv_ps(otherwise.low, negative.low, sign.low),
          _mm256_blendv_ps(otherwise.high, negative.high, sign.high)};
}

inline __m256i to_bf16(Floats v) {
  const auto half = [](__m256 x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF)));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7FC00000), nan), 16);
  };
  // Packing goes by halves of a register: the middle quarters change places.
  return _mm256_permute4x64_epi64(_mm256_packus_epi32(half(v.low), half(v.high)), 0xD8);
}
inline __m256 eight_from_bf16(__m128i v) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(v), 16));
}
inline Floats from_bf16(__m256i v) {
  return {eight_from_bf16(_mm256_castsi256_si128(v)), eight_from_bf16(_mm256_extracti128_si256(v, 1))};
}

inline __m256 load_eight(const float* p) { return _mm256_loadu_ps(p); }
inline __m256 load_eight(const uint16_t* p) {
  return eight_from_bf16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
template <typename T>
inline Floats load(const T* p) {
  return {load_eight(p), load_eight(p + 8)};
}
inline Floats load(const float* p, Mask mask) {
  if (mask == 0xFFFF) return load(p);
  const Words lanes = lanes_of(mask);
  return {_mm256_maskload_ps(p, lanes.low), _mm256_maskload_ps(p + 8, lanes.high)};
}
// (There are no masked loads and stores of 16 bits.)
inline Floats load(const uint16_t* p, Mask mask) {
  if (mask == 0xFFFF) return load(p);
  uint16_t words[16] = {};
  for (int i = 0; i < 16; ++i) {
    if ((mask >> i & 1) != 0) words[i] = p[i];
  }
  return load(words);
}
inline Words load_words(const void* p) {
  const auto* words = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(words), _mm256_loadu_si256(words + 1)};
}

inline void store(float* p, Floats v) {
  _mm256_storeu_ps(p, v.low);
  _mm256_storeu_ps(p + 8, v.high);
}
inline void store(float* p, Mask mask, Floats v) {
  if (mask == 0xFFFF) return store(p, v);
  const Words lanes = lanes_of(mask);
  _mm256_maskstore_ps(p, lanes.low, v.low);
  _mm256_maskstore_ps(p + 8, lanes.high, v.high);
}
inline void store(uint16_t* p, Floats v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_bf16(v)); }
inline void store(uint16_t* p, Mask mask, Floats v) {
  if (mask == 0xFFFF) return store(p, v);
  uint16_t words[16];
  store(words, v);
  for (int i = 0; i < 16; ++i) {
    if ((mask >> i & 1) != 0) p[i] = words[i];
  }
}
inline void store_words(void* p, Words v) {
  auto* words = static_cast<__m256i*>(p);
  _mm256_storeu_si256(words, v.low);
  _mm256_storeu_si256(words + 1, v.high);
}
inline void stream(float* p, Floats v) {
  _mm256_stream_ps(p, v.low);
  _mm256_stream_ps(p + 8, v.high);
}
inline void stream(uint16_t* p, Floats v) { _mm256_stream_si256(reinterpret_cast<__m256i*>(p), to_bf16(v)); }

// Of 8 x 8 words.
inline void transpose_eighth(const __m256i (&r)[8], __m256i (&out)[8]) {
  __m256i t[8], s[8];
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_epi32(r[i], r[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    s[i] = _mm256_unpacklo_epi64(t[i], t[i + 2]);
    s[i + 1] = _mm256_unpackhi_epi64(t[i], t[i + 2]);
    s[i + 2] = _mm256_unpacklo_epi64(t[i + 1], t[i + 3]);
    s[i + 3] = _mm256_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    out[i] = _mm256_permute2x128_si256(s[i], s[4 + i], 0x20);
    out[4 + i] = _mm256_permute2x128_si256(s[i], s[4 + i], 0x31);
  }
}
/// Transposes 16 x 16 words.
inline void transpose(Words (&r)[16]) {
  __m256i from[4][8], to[4][8];  // quarters: rows' low and high words, then those of the last 8 rows
  for (int i = 0; i < 8; ++i) {
    from[0][i] = r[i].low;
    from[1][i] = r[i].high;
    from[2][i] = r[8 + i].low;
    from[3][i] = r[8 + i].high;
  }
  for (int q = 0; q < 4; ++q) transpose_eighth(from[q], to[q]);
  for (int i = 0; i < 8; ++i) {
    r[i] = {to[0][i], to[2][i]};
    r[8 + i] = {to[1][i], to[3][i]};
  }
}

inline void keep(Floats& v) { asm volatile("" : "+x"(v.low), "+x"(v.high)); }

}  // namespace
}  // namespace tessera::ops::vectors
