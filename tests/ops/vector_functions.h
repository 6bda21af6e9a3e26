// The words of vectors.h and vector_math.h as functions of 16 numbers, for tests: only a file that is
// compiled for their instructions may include those.
#pragma once

namespace tessera::ops::vectors {

/// Set: of vector_sets.h. x, y: 16 numbers each.
template <typename Set>
struct Functions {
  static void reciprocal(const float* x, float* y);
  /// y * 2^floor(x), in y.
  static void times_power(const float* x, float* y);
  static void exp(const float* x, float* y);
  static void precise_exp(const float* x, float* y);
  static void exp2_for_bf16(const float* x, float* y);
  static void gelu(const float* x, float* y);
  static void gelu_derivative(const float* x, float* y);
};

}  // namespace tessera::ops::vectors
