// SPDX-License-Identifier: Apache-2.0
// Layer normalisation of rows with fp32 statistics. A row's numbers do not depend on the others.
#pragma once

#include <cstdint>

namespace tessera::ops::vectors {

/// Set: of vector_sets.h. T: float, or uint16_t for the bits of bf16.
template <typename Set, typename T>
struct LayerNormRows {
  /// y = (x - mean) * rstd * weight + bias for each row of x [rows, width]. stats [rows, 2]: mean and rstd.
  static void forward(const T* x, int64_t rows, int64_t width, const T* weight, const T* bias, float epsilon,
                      T* y, float* stats);
  /// dx [rows, width], plus `more` [rows, width], what x's gradient has besides (null: 0); adds to
  /// weight_sums [width] and bias_sums [width], row after row.
  static void backward(const T* gradient, const T* more, const T* x, int64_t rows, int64_t width,
                       const T* weight, const float* stats, T* dx, float* weight_sums, float* bias_sums);
};

}  // namespace tessera::ops::vectors
