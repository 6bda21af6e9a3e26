// SPDX-License-Identifier: Apache-2.0
// Attention in bf16 on AMX tiles: a block of 32 queries sees all tokens at once, the scores stay in the
// cache. Sums and softmax are fp32. Queries and tokens: 1 to kMostTokens. Requires cpu_has_amx().
#pragma once

#include <cstdint>

#include "tessera/ops/cpu/attention_heads.h"

namespace tessera::ops::amx {

using Heads = ops::Heads<uint16_t>;

/// Elements of scratch that a call needs.
int64_t attention_scratch(const AttentionShape& shape);
int64_t attention_backward_scratch(const AttentionShape& shape);

/// Heads [begin, end) counted over all samples. stats [samples * heads, queries, 2]: what backward needs.
void attention(const Heads& q, const Heads& k, const Heads& v, const AttentionShape& shape, int64_t begin,
               int64_t end, const Heads& out, float* stats, uint16_t* scratch);

/// Writes the gradients of q, k and v from that of the output, `gradient`.
void attention_backward(const Heads& q, const Heads& k, const Heads& v, const AttentionShape& shape,
                        int64_t begin, int64_t end, const Heads& gradient, const float* stats,
                        const Heads& dq, const Heads& dk, const Heads& dv, uint16_t* scratch);

}  // namespace tessera::ops::amx
