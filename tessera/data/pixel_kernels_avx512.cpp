// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "tessera/data/pixel_kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>

// On the functions alone, not on the file: what they share with other files must run on any CPU.
#define TESSERA_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512vbmi,avx512vnni")))

namespace tessera::data {
namespace {

constexpr int64_t kParts = 3, kLanes = 4;  // note [packed weights]
constexpr int64_t kOutputs = 4 * kLanes;   // made at once by the pass across
constexpr int64_t kPixelStep = 4 * 3;      // bytes of four RGB pixels
constexpr int32_t kHalf = 1 << (kFractionBits - 1);

PackedTaps pack(const Taps& taps, int64_t inputs) {
  const int32_t most = *std::max_element(taps.counts.begin(), taps.counts.end());
  const int64_t chunks = (most + 3) / 4, outputs = taps.outputs();
  if (inputs < 4 * chunks) return plain_kernels().pack(taps, inputs);
  PackedTaps packed;
  packed.taps = &taps;
  packed.chunks = chunks;
  const int64_t padded = (outputs + kOutputs - 1) / kOutputs * kOutputs;
  packed.offsets.resize(static_cast<size_t>(padded));
  packed.weights.resize(static_cast<size_t>(padded / kLanes * chunks * kParts * 64));
  for (int64_t x = 0; x < outputs; ++x) {
    // Moved left where four taps at a time would reach beyond the row.
    const int64_t first = taps.first[static_cast<size_t>(x)];
    const int64_t from = std::min(first, inputs - 4 * chunks);
    packed.offsets[static_cast<size_t>(x)] = static_cast<int32_t>(3 * from);
    int8_t* lane = packed.weights.data() + x / kLanes * chunks * kParts * 64 + x % kLanes * 16;
    for (int64_t k = 0; k < taps.counts[static_cast<size_t>(x)]; ++k) {
      const int64_t tap = first - from + k;
      int32_t weight = taps.of(x)[k];
      for (int64_t part = kParts - 1; part >= 0; --part) {
        const auto low = static_cast<int8_t>(weight);
        weight = (weight - low) >> 8;
        int8_t* at = lane + (tap / 4 * kParts + part) * 64 + tap % 4;
        for (int channel = 0; channel < 4; ++channel) at[4 * channel] = low;
      }
    }
  }
  return packed;
}

TESSERA_AVX512 inline __m128i load_16(const uint8_t* bytes) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
}

/// Four outputs, a lane of red, green, blue and nothing each, before rounding.
TESSERA_AVX512 inline __m512i four_outputs(const uint8_t* row, const int32_t* offsets, const int8_t* weights,
                                           int64_t chunks) {
  const __m512i channels =
      _mm512_broadcast_i32x4(_mm_setr_epi8(0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11, -1, -1, -1, -1));
  __m512i high = _mm512_setzero_si512(), middle = high, low = _mm512_set1_epi32(kHalf);
  for (int64_t j = 0; j < chunks; ++j, row += kPixelStep, weights += kParts * 64) {
    const __m256i first = _mm256_inserti128_si256(_mm256_castsi128_si256(load_16(row + offsets[0])),
                                                  load_16(row + offsets[1]), 1);
    const __m256i second = _mm256_inserti128_si256(_mm256_castsi128_si256(load_16(row + offsets[2])),
                                                   load_16(row + offsets[3]), 1);
    const __m512i pixels =
        _mm512_shuffle_epi8(_mm512_inserti64x4(_mm512_castsi256_si512(first), second, 1), channels);
    high = _mm512_dpbusd_epi32(high, pixels, _mm512_loadu_si512(weights));
    middle = _mm512_dpbusd_epi32(middle, pixels, _mm512_loadu_si512(weights + 64));
    low = _mm512_dpbusd_epi32(low, pixels, _mm512_loadu_si512(weights + 128));
  }
  const __m512i upper = _mm512_add_epi32(_mm512_slli_epi32(high, 8), middle);
  return _mm512_srai_epi32(_mm512_add_epi32(_mm512_slli_epi32(upper, 8), low), kFractionBits);
}

/// Clamped to bytes: dword 4 * lane + i of the result comes from dwords of lane `lane` of the i-th operand.
TESSERA_AVX512 inline __m512i to_bytes(__m512i a, __m512i b, __m512i c, __m512i d) {
  return _mm512_packus_epi16(_mm512_packs_epi32(a, b), _mm512_packs_epi32(c, d));
}

TESSERA_AVX512 void across_rgb(const uint8_t* row, const int32_t* offsets, const int8_t* weights,
                               int64_t chunks, int64_t outputs, uint8_t* out) {
  alignas(64) uint8_t order[64] = {};
  for (int pixel = 0; pixel < kOutputs; ++pixel) {
    for (int c = 0; c < 3; ++c)
      order[3 * pixel + c] = static_cast<uint8_t>(16 * (pixel % 4) + 4 * (pixel / 4) + c);
  }
  const __m512i gather = _mm512_load_si512(order);
  const int64_t step = chunks * kParts * 64;
  for (int64_t x = 0; x < outputs;
       x += kOutputs, offsets += kOutputs, weights += 4 * step, out += 3 * kOutputs) {
    const __m512i bytes = to_bytes(four_outputs(row, offsets, weights, chunks),
                                   four_outputs(row, offsets + 4, weights + step, chunks),
                                   four_outputs(row, offsets + 8, weights + 2 * step, chunks),
                                   four_outputs(row, offsets + 12, weights + 3 * step, chunks));
    _mm512_storeu_si512(out, _mm512_permutexvar_epi8(gather, bytes));
  }
}

void across(const uint8_t* row, PackedTaps& taps, int64_t channels, uint8_t* out) {
  if (channels != 3 || taps.chunks == 0) return plain_kernels().across(row, taps, channels, out);
  across_rgb(row, taps.offsets.data(), taps.weights.data(), taps.chunks, taps.taps->outputs(), out);
}

TESSERA_AVX512 inline __mmask64 first_bytes(int64_t count) {
  return count >= 64 ? ~__mmask64{0} : (__mmask64{1} << count) - 1;
}

TESSERA_AVX512 inline __m512i add_product(__m512i sum, const uint8_t* bytes, __m512i weight) {
  return _mm512_add_epi32(sum, _mm512_mullo_epi32(_mm512_cvtepu8_epi32(load_16(bytes)), weight));
}

TESSERA_AVX512 void down(const uint8_t* const* rows, const int32_t* weights, int64_t taps, int64_t count,
                         uint8_t* out) {
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  for (int64_t i = 0; i < count; i += 64) {
    __m512i a = _mm512_set1_epi32(kHalf), b = a, c = a, d = a;
    for (int64_t k = 0; k < taps; ++k) {
      const __m512i weight = _mm512_set1_epi32(weights[k]);
      const uint8_t* bytes = rows[k] + i;
      a = add_product(a, bytes, weight);
      b = add_product(b, bytes + 16, weight);
      c = add_product(c, bytes + 32, weight);
      d = add_product(d, bytes + 48, weight);
    }
    const __m512i bytes = to_bytes(_mm512_srai_epi32(a, kFractionBits), _mm512_srai_epi32(b, kFractionBits),
                                   _mm512_srai_epi32(c, kFractionBits), _mm512_srai_epi32(d, kFractionBits));
    _mm512_mask_storeu_epi8(out + i, first_bytes(count - i), _mm512_permutexvar_epi32(order, bytes));
  }
}

TESSERA_AVX512 void normalise_rgb(const uint8_t* row, int64_t width, const float* scale, const float* shift,
                                  int64_t plane, float* out) {
  alignas(64) uint8_t order[3][64] = {};
  for (int c = 0; c < 3; ++c) {
    for (int x = 0; x < 16; ++x) order[c][4 * x] = static_cast<uint8_t>(3 * x + c);
  }
  constexpr __mmask64 kLowBytes = 0x1111111111111111U;
  for (int64_t x = 0; x < width; x += 16) {
    const int64_t count = std::min<int64_t>(16, width - x);
    const __m512i pixels = _mm512_maskz_loadu_epi8(first_bytes(3 * count), row + 3 * x);
    const auto kept = static_cast<__mmask16>((1U << count) - 1);
    for (int c = 0; c < 3; ++c) {
      const __m512i bytes = _mm512_maskz_permutexvar_epi8(kLowBytes, _mm512_load_si512(order[c]), pixels);
      const __m512 scaled = _mm512_mul_ps(_mm512_cvtepi32_ps(bytes), _mm512_set1_ps(scale[c]));
      _mm512_mask_storeu_ps(out + c * plane + x, kept, _mm512_add_ps(scaled, _mm512_set1_ps(shift[c])));
    }
  }
}

void normalise(const uint8_t* row, int64_t width, int64_t channels, const float* scale, const float* shift,
               int64_t plane, float* out) {
  if (channels != 3) return plain_kernels().normalise(row, width, channels, scale, shift, plane, out);
  normalise_rgb(row, width, scale, shift, plane, out);
}

}  // namespace

const PixelKernels* avx512_kernels() {
  static constexpr PixelKernels kernels = {"avx512", pack, across, down, normalise};
  static const bool runs = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vbmi") &&
                           __builtin_cpu_supports("avx512vnni");
  return runs ? &kernels : nullptr;
}

}  // namespace tessera::data

#else

namespace tessera::data {
const PixelKernels* avx512_kernels() { return nullptr; }
}  // namespace tessera::data

#endif
