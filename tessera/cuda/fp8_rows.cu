// SPDX-License-Identifier: Apache-2.0
// Rows rounded to e4m3 with a scale each, as ops/fp8_linear.h says: a block for a row, largest value and
// numbers in one pass (the row comes from the cache the second time). In integers, alike on GPUs with and
// without fp8.
#include "tessera/cuda/kernels.h"
#include "tessera/cuda/launch.cuh"

namespace tessera::cuda {
namespace {

using device::Fp8Pass;

constexpr uint32_t kAbsolute = 0x7FFFFFFF, kInfinity = 0x7F800000;
constexpr int kMantissaBits = 23;
constexpr uint32_t kRoundUp = 0x1FFFFF;   // added to a float's bits: counts the exponent up above 1.75
constexpr uint32_t kLargestExponent = 8;  // of e4m3, whose largest number is 1.75 * 2^8
constexpr uint32_t kLeastScale = 3;       // 2^-124, as float32's biased exponent
constexpr uint8_t kNan = 0x7F;

__device__ uint32_t bits_of(float value) { return __float_as_uint(value); }

/// The number of e4m3 next to `value`, the even one of two; |value| <= 448.
__device__ uint8_t rounded(float value) {
  const uint32_t bits = bits_of(value) & kAbsolute, sign = (bits_of(value) >> 24) & 0x80U;
  if (bits < bits_of(0x1p-6F)) {  // multiples of 2^-9; the sum's last bit is that
    const float steps = __uint_as_float(bits) + 0x1p14F;
    return static_cast<uint8_t>(sign | (bits_of(steps) - bits_of(0x1p14F)));
  }
  const uint32_t even = (bits >> 20) & 1U;
  const uint32_t kept = (bits + 0x7FFFFU + even) >> 20;  // exponent and 3 bits of mantissa
  return static_cast<uint8_t>(sign | (kept - ((127U - 7U) << 3)));
}

template <typename T, int kVector>
__global__ void fp8_rows_kernel(Fp8Pass a) {
  using P = Pack<T, kVector>;
  const int64_t row = blockIdx.x;
  const int64_t packs = row < a.rows ? a.columns / kVector : 0, filled = a.filled_columns / kVector;
  const P* x = static_cast<const P*>(a.x) + row * (a.columns / kVector);
  uint32_t largest[1] = {0};  // as bits: above kInfinity is NaN
  for (int64_t i = threadIdx.x; i < packs; i += blockDim.x) {
    const P pack = x[i];
    for (int k = 0; k < kVector; ++k) {
      const uint32_t bits = bits_of(to_float(pack.at[k])) & kAbsolute;
      largest[0] = bits > largest[0] ? bits : largest[0];
    }
  }
  over_block(largest, uint32_t{0}, [](uint32_t p, uint32_t q) { return p > q ? p : q; });
  const bool finite = largest[0] < kInfinity;
  const uint32_t up = (largest[0] + kRoundUp) >> kMantissaBits, least = kLargestExponent + kLeastScale;
  const uint32_t exponent = finite ? (up > least ? up : least) - kLargestExponent : 127;
  if (threadIdx.x == 0) a.scales[row] = __uint_as_float(exponent << kMantissaBits);
  const float inverse = __uint_as_float((254 - exponent) << kMantissaBits);
  auto* out = reinterpret_cast<Pack<uint8_t, kVector>*>(a.numbers) + row * filled;
  for (int64_t i = threadIdx.x; i < filled; i += blockDim.x) {
    Pack<uint8_t, kVector> numbers{};
    if (i < packs) {
      const P pack = x[i];
      for (int k = 0; k < kVector; ++k) {
        numbers.at[k] = finite ? rounded(to_float(pack.at[k]) * inverse) : kNan;
      }
    }
    out[i] = numbers;
  }
}

}  // namespace

void fp8_rows(const Fp8Pass& a, void* stream) {
  with_type(a.number, [&](auto zero) {
    using T = decltype(zero);
    constexpr int kMost = kAccess / sizeof(T);
    const bool packs = a.columns % kMost == 0 && a.filled_columns % kMost == 0 && is_aligned(a.x, kAccess) &&
                       is_aligned(a.numbers, kMost);
    launch(packs ? fp8_rows_kernel<T, kMost> : fp8_rows_kernel<T, 1>, a.filled_rows,
           threads_for(a.filled_columns / (packs ? kMost : 1)), a, stream);
  });
}

}  // namespace tessera::cuda
