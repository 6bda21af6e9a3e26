// SPDX-License-Identifier: Apache-2.0
// GELU of results in either type of element. On AVX-512, which looks a register up in two others, that of
// bf16 takes its normal distribution from a table, in half the instructions of vector_math.h's formula.
// Private to kernels; like vectors.h without any standard header.
#pragma once

#include "tessera/ops/cpu/vector_math.h"

namespace tessera::ops::vectors {
namespace {

inline Floats gelu_for(Floats x, float) { return gelu(x); }
inline Floats gelu_derivative_for(Floats x, float) { return gelu_derivative(x); }

#if !defined(__AVX512F__)
inline Floats gelu_for(Floats x, uint16_t) { return gelu(x); }
inline Floats gelu_derivative_for(Floats x, uint16_t) { return gelu_derivative(x); }
#else

/// An odd function f of x whose values are 0.5 from x = kReach on: a cubic for each of 32 pieces of |x|,
/// through the values at its four Chebyshev nodes. c[k]: the coefficients of the distance from a piece's
/// middle.
struct OddTable {
  alignas(64) float c[4][32];
};

constexpr double kReach = 5.5, kPieces = 31;  // the last piece begins half a piece before kReach

constexpr double exp_of_minus(double y) {  // y >= 0
  double sum = 1, term = 1;
  for (int n = 1; n < 16; ++n) sum += term *= -y / 64 / n;
  for (int i = 0; i < 6; ++i) sum *= sum;
  return sum;
}

/// The density of the normal distribution, and how much of it lies between 0 and x: the series of Marsaglia,
/// Evaluating the Normal Distribution (2004).
constexpr double density(double x) { return 0.39894228040143268 * exp_of_minus(x * x / 2); }
constexpr double from_zero(double x) {
  double sum = 0, term = x;
  for (int n = 3; n < 200; n += 2, term *= x * x / (n - 2)) sum += term;
  return sum * density(x);
}
/// What gelu'(x) differs from 1/2 by.
constexpr double slope(double x) { return from_zero(x) + x * density(x); }

constexpr OddTable table_of(double (*f)(double)) {
  constexpr double a = 0.46193976625564337, b = 0.19134171618254489;  // cos(pi / 8) / 2, cos(3 pi / 8) / 2
  OddTable table{};
  for (int i = 0; i < 31; ++i) {
    const auto at = [&](double t) { return f((i + t) * kReach / kPieces); };
    const double even_a = (at(a) + at(-a)) / 2, even_b = (at(b) + at(-b)) / 2;
    const double odd_a = (at(a) - at(-a)) / (2 * a), odd_b = (at(b) - at(-b)) / (2 * b);
    const double c2 = (even_a - even_b) / (a * a - b * b), c3 = (odd_a - odd_b) / (a * a - b * b);
    table.c[0][i] = static_cast<float>(even_a - c2 * a * a);
    table.c[1][i] = static_cast<float>(odd_a - c3 * a * a);
    table.c[2][i] = static_cast<float>(c2);
    table.c[3][i] = static_cast<float>(c3);
  }
  table.c[0][31] = 0.5F;
  return table;
}

constexpr OddTable kFromZero = table_of(from_zero), kSlope = table_of(slope);

/// f(x) with an absolute error of 2e-7 (kFromZero) or 2e-6 (kSlope); exactly +-0.5 from kReach on. NaN stays
/// NaN.
inline Floats odd(const OddTable& table, Floats x) {
  // Adding 1.5 * 2^23 rounds to an integer, which the last bits then hold. (The order of min's operands keeps
  // a NaN.)
  const Floats shift = broadcast(12582912.0F);
  const Floats t =
      min(broadcast(static_cast<float>(kPieces)), abs(x) * broadcast(static_cast<float>(kPieces / kReach)));
  const Floats shifted = t + shift;
  const Words piece = as_words(shifted);
  const Floats f = t - (shifted - shift);
  const auto coefficient = [&](int k) {
    return _mm512_permutex2var_ps(load(table.c[k]), piece, load(table.c[k] + 16));
  };
  Floats p = fmadd(coefficient(3), f, coefficient(2));
  p = fmadd(p, f, coefficient(1));
  p = fmadd(p, f, coefficient(0));
  return _mm512_xor_ps(p, _mm512_and_ps(x, broadcast(-0.0F)));
}

inline Floats gelu_for(Floats x, uint16_t) { return x * (odd(kFromZero, x) + broadcast(0.5F)); }
inline Floats gelu_derivative_for(Floats x, uint16_t) { return odd(kSlope, x) + broadcast(0.5F); }

#endif

}  // namespace
}  // namespace tessera::ops::vectors
