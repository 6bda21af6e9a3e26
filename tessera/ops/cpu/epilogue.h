// SPDX-License-Identifier: Apache-2.0
// What becomes of the result of a matrix product while it is in the L1 cache.
#pragma once

namespace tessera::ops {

/// T: float, or uint16_t for the bits of bf16. First + bias, then GELU or the way back through one, then +
/// residual.
template <typename T>
struct Epilogue {
  T* out = nullptr;             // [rows, columns]
  const T* bias = nullptr;      // [columns]: c += bias
  const T* residual = nullptr;  // [rows, columns]: out = residual + c
  T* linear = nullptr;          // [rows, columns]: linear = c and out = gelu(linear), of what is rounded
  const T* slope_of = nullptr;  // [rows, columns]: c *= gelu'(slope_of)
};

}  // namespace tessera::ops
