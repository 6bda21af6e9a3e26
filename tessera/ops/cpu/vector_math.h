// SPDX-License-Identifier: Apache-2.0
// Maths of vectors. Private to kernels; like vectors.h without any standard header.
#pragma once

#include "tessera/ops/cpu/vectors.h"

namespace tessera::ops::vectors {
namespace {

inline int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }

inline int64_t padded(int64_t size) { return (size + 31) / 32 * 32; }

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

/// e^x for x <= 88; relative error 3e-6, with 7 terms 2e-7 (and 6e-8 |x| of its own rounding). NaN stays NaN.
/// Zero below 2^-126: denormal results take a hundred cycles.
template <int kTerms = 6>
inline Floats exp(Floats x) {
  const Floats t = x * broadcast(1.44269504F);
  const Floats n = to_nearest(t);
  const Floats f = t - n;
  Floats p = broadcast(0.00133335581F);
  if constexpr (kTerms == 7) p = fmadd(broadcast(0.000154035304F), f, p);
  p = fmadd(p, f, broadcast(0.00961812911F));
  p = fmadd(p, f, broadcast(0.0555041087F));
  p = fmadd(p, f, broadcast(0.240226507F));
  p = fmadd(p, f, broadcast(0.693147181F));
  p = fmadd(p, f, broadcast(1.0F));
  return times_power(p, n, t);
}

/// e^x for x <= 88 with a relative error of 1e-7; else as exp().
inline Floats precise_exp(Floats x) {
  const Floats t = x * broadcast(1.44269504F);
  const Floats n = to_nearest(t);
  // x - n ln 2, of which the first part has so few digits that its product is exact.
  Floats r = fnmadd(n, broadcast(0.693359375F), x);
  r = fnmadd(n, broadcast(-2.12194440e-4F), r);
  // (e^r - 1 - r) / r^2 through five Chebyshev nodes of [-ln 2 / 2, ln 2 / 2].
  Floats p = broadcast(0.00139262135F);
  p = fmadd(p, r, broadcast(0.00836320297F));
  p = fmadd(p, r, broadcast(0.0416665544F));
  p = fmadd(p, r, broadcast(0.166665768F));
  p = fmadd(p, r, broadcast(0.5F));
  p = fmadd(r * r, p, r + broadcast(1.0F));
  return times_power(p, n, t);
}

/// 2^x for x < 128 with a relative error of 9e-5, a twentieth of bf16's; 1 exactly for 0; else as exp().
inline Floats exp2_for_bf16(Floats x) {
  const Floats f = above_floor(x);
  // Of least relative error in [0, 1) among the cubics that are 1 at 0.
  Floats p = fmadd(broadcast(0.0770670399F), f, broadcast(0.227644995F));
  p = fmadd(p, f, broadcast(0.695116758F));
  p = fmadd(p, f, broadcast(1.0F));
  return times_power(p, x, x);
}

/// The normal distribution at x: density e^(-x^2/2) without its factor, and the cumulative (Abramowitz and
/// Stegun 7.1.26, absolute error 2e-7).
struct Normal {
  Floats exponential, cumulative;
};

inline Normal normal(Floats x) {
  const Floats one = broadcast(1.0F);
  // Beyond 30 the tail is zero in any case. (The order of min's operands keeps a NaN.)
  const Floats magnitude = min(broadcast(30.0F), abs(x) * broadcast(0.707106781F));
  const Floats e = exp<7>(x * x * broadcast(-0.5F));
  const Floats t = reciprocal(fmadd(magnitude, broadcast(0.3275911F), one));
  Floats p = broadcast(1.061405429F);
  p = fmadd(p, t, broadcast(-1.453152027F));
  p = fmadd(p, t, broadcast(1.421413741F));
  p = fmadd(p, t, broadcast(-0.284496736F));
  p = fmadd(p, t, broadcast(0.254829592F));
  const Floats tail = p * t * e * broadcast(0.5F);
  return {e, by_sign(x, tail, one - tail)};
}

inline Floats gelu(Floats x) { return x * normal(x).cumulative; }

inline Floats gelu_derivative(Floats x) {
  const Normal n = normal(x);
  return fmadd(x * n.exponential, broadcast(0.398942280F), n.cumulative);
}

}  // namespace
}  // namespace tessera::ops::vectors
