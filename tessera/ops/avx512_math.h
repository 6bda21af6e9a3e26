// Vector maths of the AVX-512 kernels. Private to files compiled for those instructions, and without any
// standard header: an inline function of theirs compiled here must not serve the rest of the program.
#pragma once

#include <immintrin.h>
#include <stdint.h>

namespace tessera::ops::avx512 {
namespace {

inline int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }

/// Owns elements that are not set; of none it is null. (Standard headers' owners are out of reach here.)
template <typename T>
class Buffer {
 public:
  explicit Buffer(int64_t count) : data_(count == 0 ? nullptr : new T[static_cast<uint64_t>(count)]) {}
  ~Buffer() { delete[] data_; }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  T* data() const { return data_; }

 private:
  T* data_;
};

inline __m512 load_bf16(const uint16_t* p, __mmask16 mask) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, p)), 16));
}

/// The nearest numbers of bf16, ties to even; NaN stays NaN. (Some of the files are compiled for CPUs without
/// an instruction for it.)
inline __m256i to_bf16(__m512 v) {
#if defined(__AVX512BF16__)
  return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(v));
#else
  const __m512i bits = _mm512_castps_si512(v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
  const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  const __m512i words = _mm512_mask_mov_epi32(rounded, nan, _mm512_set1_epi32(0x7FC00000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(words, 16));
#endif
}

inline void store_bf16(uint16_t* p, __mmask16 mask, __m512 v) {
  _mm256_mask_storeu_epi16(p, mask, to_bf16(v));
}

// The same names for either type of element, for kernels written once.
inline __m512 load(const float* p) { return _mm512_loadu_ps(p); }
inline __m512 load(const float* p, __mmask16 mask) { return _mm512_maskz_loadu_ps(mask, p); }
inline void store(float* p, __m512 v) { _mm512_storeu_ps(p, v); }
inline void store(float* p, __mmask16 mask, __m512 v) { _mm512_mask_storeu_ps(p, mask, v); }
inline __m512 load(const uint16_t* p) {
  const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16));
}
inline __m512 load(const uint16_t* p, __mmask16 mask) { return load_bf16(p, mask); }
inline void store(uint16_t* p, __m512 v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), to_bf16(v)); }
inline void store(uint16_t* p, __mmask16 mask, __m512 v) { store_bf16(p, mask, v); }

/// What loading gives after storing to elements of that type.
inline __m512 rounded_to(__m512 v, float) { return v; }
inline __m512 rounded_to(__m512 v, uint16_t) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(to_bf16(v)), 16));
}

/// The first `count` of 16 lanes.
inline __mmask16 first_lanes(int64_t count) {
  return count >= 16 ? __mmask16(0xFFFF) : static_cast<__mmask16>((1U << count) - 1U);
}

/// e^x for x <= 88; relative error 3e-6, with 7 terms 2e-7 (and 6e-8 |x| of its own rounding). NaN stays NaN.
/// Zero below 2^-126: denormal results take a hundred cycles.
template <int kTerms = 6>
inline __m512 exp(__m512 x) {
  const __m512 t = _mm512_mul_ps(x, _mm512_set1_ps(1.44269504F));
  const __mmask16 representable = _mm512_cmp_ps_mask(t, _mm512_set1_ps(-126.0F), _CMP_NLT_UQ);
  const __m512 n = _mm512_roundscale_ps(t, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 f = _mm512_sub_ps(t, n);
  __m512 p = _mm512_set1_ps(0.00133335581F);
  if constexpr (kTerms == 7) p = _mm512_fmadd_ps(_mm512_set1_ps(0.000154035304F), f, p);
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.00961812911F));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.0555041087F));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.240226507F));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.693147181F));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0F));
  return _mm512_maskz_scalef_ps(representable, p, n);
}

/// e^x for x <= 88 with a relative error of 1e-7; else as exp().
inline __m512 precise_exp(__m512 x) {
  const __m512 t = _mm512_mul_ps(x, _mm512_set1_ps(1.44269504F));
  const __mmask16 representable = _mm512_cmp_ps_mask(t, _mm512_set1_ps(-126.0F), _CMP_NLT_UQ);
  const __m512 n = _mm512_roundscale_ps(t, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  // x - n ln 2, of which the first part has so few digits that its product is exact.
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375F), x);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4F), r);
  // (e^r - 1 - r) / r^2 through five Chebyshev nodes of [-ln 2 / 2, ln 2 / 2].
  __m512 p = _mm512_set1_ps(0.00139262135F);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.00836320297F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.0416665544F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.166665768F));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.5F));
  p = _mm512_fmadd_ps(_mm512_mul_ps(r, r), p, _mm512_add_ps(r, _mm512_set1_ps(1.0F)));
  return _mm512_maskz_scalef_ps(representable, p, n);
}

/// 2^x for x < 128 with a relative error of 9e-5, a twentieth of bf16's; 1 exactly for 0; else as exp().
inline __m512 exp2_for_bf16(__m512 x) {
  const __mmask16 representable = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-126.0F), _CMP_NLT_UQ);
  const __m512 f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  // Of least relative error in [0, 1) among the cubics that are 1 at 0.
  __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(0.0770670399F), f, _mm512_set1_ps(0.227644995F));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(0.695116758F));
  p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0F));
  return _mm512_maskz_scalef_ps(representable, p, x);  // takes the floor of x
}

/// The normal distribution at x: density e^(-x^2/2) without its factor, and the cumulative (Abramowitz and
/// Stegun 7.1.26, absolute error 2e-7).
struct Normal {
  __m512 exponential, cumulative;
};

inline Normal normal(__m512 x) {
  const __m512 one = _mm512_set1_ps(1.0F);
  // Beyond 30 the tail is zero in any case. (The order of min's operands keeps a NaN.)
  const __m512 magnitude =
      _mm512_min_ps(_mm512_set1_ps(30.0F), _mm512_mul_ps(_mm512_abs_ps(x), _mm512_set1_ps(0.707106781F)));
  const __m512 e = exp<7>(_mm512_mul_ps(_mm512_mul_ps(x, x), _mm512_set1_ps(-0.5F)));
  const __m512 denominator = _mm512_fmadd_ps(magnitude, _mm512_set1_ps(0.3275911F), one);
  const __m512 guess = _mm512_rcp14_ps(denominator);
  const __m512 t = _mm512_mul_ps(guess, _mm512_fnmadd_ps(denominator, guess, _mm512_set1_ps(2.0F)));
  __m512 p = _mm512_set1_ps(1.061405429F);
  p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(-1.453152027F));
  p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(1.421413741F));
  p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(-0.284496736F));
  p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(0.254829592F));
  const __m512 tail = _mm512_mul_ps(_mm512_mul_ps(_mm512_mul_ps(p, t), e), _mm512_set1_ps(0.5F));
  const __mmask16 negative = _mm512_movepi32_mask(_mm512_castps_si512(x));
  return {e, _mm512_mask_blend_ps(negative, _mm512_sub_ps(one, tail), tail)};
}

inline __m512 gelu(__m512 x) { return _mm512_mul_ps(x, normal(x).cumulative); }

inline __m512 gelu_derivative(__m512 x) {
  const Normal n = normal(x);
  return _mm512_fmadd_ps(_mm512_mul_ps(x, n.exponential), _mm512_set1_ps(0.398942280F), n.cumulative);
}

}  // namespace
}  // namespace tessera::ops::avx512
