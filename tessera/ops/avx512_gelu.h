// GELU for results of bf16: its normal distribution from a table, in half the instructions of
// avx512_math.h's formula. Private to kernels for AVX-512; like that file without any standard header.
#pragma once

#include "tessera/ops/avx512_math.h"

namespace tessera::ops::avx512 {
namespace {

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
inline __m512 odd(const OddTable& table, __m512 x) {
  // Adding 1.5 * 2^23 rounds to an integer, which the last bits then hold. (The order of min's operands keeps
  // a NaN.)
  const __m512 shift = _mm512_set1_ps(12582912.0F);
  const __m512 t =
      _mm512_min_ps(_mm512_set1_ps(static_cast<float>(kPieces)),
                    _mm512_mul_ps(_mm512_abs_ps(x), _mm512_set1_ps(static_cast<float>(kPieces / kReach))));
  const __m512 shifted = _mm512_add_ps(t, shift);
  const __m512i piece = _mm512_castps_si512(shifted);
  const __m512 f = _mm512_sub_ps(t, _mm512_sub_ps(shifted, shift));
  const auto coefficient = [&](int k) {
    return _mm512_permutex2var_ps(_mm512_load_ps(table.c[k]), piece, _mm512_load_ps(table.c[k] + 16));
  };
  __m512 p = _mm512_fmadd_ps(coefficient(3), f, coefficient(2));
  p = _mm512_fmadd_ps(p, f, coefficient(1));
  p = _mm512_fmadd_ps(p, f, coefficient(0));
  return _mm512_xor_ps(p, _mm512_and_ps(x, _mm512_set1_ps(-0.0F)));
}

// The same names for either type of element, as in avx512_math.h.
inline __m512 gelu_for(__m512 x, float) { return gelu(x); }
inline __m512 gelu_for(__m512 x, uint16_t) {
  return _mm512_mul_ps(x, _mm512_add_ps(odd(kFromZero, x), _mm512_set1_ps(0.5F)));
}
inline __m512 gelu_derivative_for(__m512 x, float) { return gelu_derivative(x); }
inline __m512 gelu_derivative_for(__m512 x, uint16_t) {
  return _mm512_add_ps(odd(kSlope, x), _mm512_set1_ps(0.5F));
}

}  // namespace
}  // namespace tessera::ops::avx512
