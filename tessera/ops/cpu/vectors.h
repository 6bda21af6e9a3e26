// SPDX-License-Identifier: Apache-2.0
// Sixteen numbers of fp32 at a time, by the instructions that a file is compiled for: kernels are written
// once in these words. Private to such files, and without any standard header: an inline function of theirs
// compiled here must not serve the rest of the program.
//
// Floats: 16 numbers, with + - *. Words: 16 words of 32 bits. Mask: a bit for each lane. CompiledFor: one of
// vector_sets.h. Loads, stores and rounding have the same names for elements of fp32 and for the bits of
// bf16; with a mask, lanes without their bit are not touched, and load as 0. Beside what names itself:
//   above_floor(v)              v - floor(v)
//   times_power(p, n, e)        p * 2^floor(n) where e is at least -126 or NaN, else 0; infinite from n = 128
//   reciprocal(v)               with a relative error of 1e-7
//   by_sign(s, a, b)            a where the sign bit of s is set, b elsewhere
//   stream(p, v)                past the caches; p is a multiple of 32 bytes, of 64 for fp32
//   rounded_to(v, Element())    what loading gives after storing to elements of that type
#pragma once

#if defined(__AVX512F__)
#include "tessera/ops/cpu/vectors_avx512.h"
#else
#include "tessera/ops/cpu/vectors_avx2.h"
#endif

namespace tessera::ops::vectors {
namespace {

inline Mask first_lanes(int64_t count) {
  return count >= 16 ? Mask(0xFFFF) : static_cast<Mask>((1U << count) - 1U);
}

inline Floats rounded_to(Floats v, float) { return v; }
inline Floats rounded_to(Floats v, uint16_t) { return from_bf16(to_bf16(v)); }

}  // namespace
}  // namespace tessera::ops::vectors
