// SPDX-License-Identifier: Apache-2.0
// What few_query_attention.h computes for one image. Sums and softmax are fp32; an image's numbers
// depend on nothing else. Calls may run on several threads.
#pragma once

#include <cstdint>

namespace tessera::ops::vectors {

struct FewQueryShape {
  int64_t rows, tokens, width;  // rows of u: one for each head of each query
  int64_t step;                 // elements between an image's rows of u, z and their gradients
  float scale;                  // of the scores

  /// Floats of scratch that a call needs.
  [[gnu::always_inline]] int64_t scratch() const { return 2 * rows * (width + tokens); }
};

/// Set: of vector_sets.h. T: float, or uint16_t for the bits of bf16. Sizes are 1 or more. x and dx: [tokens,
/// width]; p: [rows, tokens].
template <typename Set, typename T>
struct FewQueryImage {
  /// p = softmax(scale u x^T), z = p x.
  static void forward(const T* x, const T* u, const FewQueryShape& shape, float* p, T* z, float* scratch);
  /// The gradients of u and x from dz, that of z. dx: null where nobody wants it.
  static void backward(const T* x, const T* u, const T* dz, const float* p, const FewQueryShape& shape, T* du,
                       T* dx, float* scratch);
};

}  // namespace tessera::ops::vectors
