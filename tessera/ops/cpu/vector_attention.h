// SPDX-License-Identifier: Apache-2.0
// Attention for CPUs without tiles: as amx_attention.h. Sums and softmax are fp32. A head's numbers do not
// depend on the others.
#pragma once

#include <cstdint>

#include "tessera/ops/cpu/attention_heads.h"

namespace tessera::ops::vectors {

/// Set: of vector_sets.h. Element: of numbers in memory, float or uint16_t (the bits of bf16). Word: of those
/// that are multiplied, float, or uint16_t, which requires Avx512 and AVX512_BF16.
template <typename Set, typename Element, typename Word>
struct AttentionKernels {
  /// Units of two bytes of scratch, aligned to 64 bytes, that a call needs.
  static int64_t scratch(const AttentionShape& shape);
  static int64_t backward_scratch(const AttentionShape& shape);

  /// Heads [begin, end) counted over all samples. stats [samples * heads, queries, 2]: what backward needs.
  /// Queries and tokens: 1 to kMostTokens.
  static void forward(const Heads<Element>& q, const Heads<Element>& k, const Heads<Element>& v,
                      const AttentionShape& shape, int64_t begin, int64_t end, const Heads<Element>& out,
                      float* stats, uint16_t* scratch);

  /// Writes the gradients of q, k and v from that of the output, `gradient`.
  static void backward(const Heads<Element>& q, const Heads<Element>& k, const Heads<Element>& v,
                       const AttentionShape& shape, int64_t begin, int64_t end,
                       const Heads<Element>& gradient, const float* stats, const Heads<Element>& dq,
                       const Heads<Element>& dk, const Heads<Element>& dv, uint16_t* scratch);
};

}  // namespace tessera::ops::vectors
