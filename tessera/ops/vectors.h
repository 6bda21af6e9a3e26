// Sixteen numbers of fp32 at a time, by the instructions that a file is compiled for: kernels are written
// once in these words. Private to such files, and without any standard header: an inline function of theirs
// compiled here must not serve the rest of the program.
//
// Floats: 16 numbers, with + - *. Words: 16 words of 32 bits. Mask: a bit for each lane. CompiledFor: one of
// vector_sets.h. Loads, stores and rounding have the same names for elements of fp32 and for the bits of
// bf16; with a mask, lanes without their bit are not touched, and load as 0. Beside what names itself:
//   above_floor(v)              v - floor(v)
//   times_power(p, n, e)        p * 2^floor(n) where e is at least -126 or NaN, else 0; infinite from n = 128
//   rough_reciprocal(v)         to 12 bits or more
//   by_sign(s, a, b)            a where the sign bit of s is set, b elsewhere
//   stream(p, v)                past the caches; p is a multiple of 32 bytes, of 64 for fp32
//   rounded_to(v, Element())    what loading gives after storing to elements of that type
#pragma once

#if defined(__AVX512F__)
#include "tessera/ops/vectors_avx512.h"
#else
#include "tessera/ops/vectors_avx2.h"
#endif
