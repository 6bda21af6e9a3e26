// SPDX-License-Identifier: Apache-2.0
// What the attention kernels for CPUs are called with.
#pragma once

#include <cstdint>

namespace tessera::ops {

/// One of q, k, v, their gradients or the output: element (sample, token, head, i) lies at data + sample *
/// sample_step + token * token_step + head * head_step + i. Element: uint16_t (the bits of bf16) or float.
template <typename Element>
struct Heads {
  Element* data;
  int64_t sample_step, token_step, head_step;
};

struct AttentionShape {
  int64_t heads, queries, tokens, head_width;
};

/// The first number of head `index` % heads of sample `index` / heads.
template <typename Element>
[[gnu::always_inline]] inline Element* head_at(const Heads<Element>& x, const AttentionShape& shape,
                                               int64_t index) {
  return x.data + index / shape.heads * x.sample_step + index % shape.heads * x.head_step;
}

/// Scores are divided by the root of the head's width.
[[gnu::always_inline]] inline float scale_of(const AttentionShape& shape) {
  return 1.0F / __builtin_sqrtf(static_cast<float>(shape.head_width));
}

/// Tokens and queries up to which the kernels keep their scores in the L2 cache.
constexpr int64_t kMostTokens = 640;

}  // namespace tessera::ops
