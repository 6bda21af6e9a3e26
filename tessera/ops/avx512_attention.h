// Attention on AVX-512: as amx_attention.h, for CPUs without tiles, in fp32 (requires cpu_has_avx512()) and
// bf16 (AVX512_BF16 too; widened_attention multiplies bf16 by fp32's instructions and requires only
// cpu_has_avx512()). Sums and softmax are fp32. A head's numbers do not depend on the others.
#pragma once

#include <cstdint>

#include "tessera/ops/attention_heads.h"

namespace tessera::ops::avx512 {

/// Units of two bytes of scratch, aligned to 64 bytes, that a call needs, whatever its elements are.
int64_t attention_scratch(const AttentionShape& shape);
int64_t attention_backward_scratch(const AttentionShape& shape);

/// Heads [begin, end) counted over all samples. stats [samples * heads, queries, 2]: what backward needs.
/// Queries and tokens: 1 to kMostTokens.
void attention(const Heads<uint16_t>& q, const Heads<uint16_t>& k, const Heads<uint16_t>& v,
               const AttentionShape& shape, int64_t begin, int64_t end, const Heads<uint16_t>& out,
               float* stats, uint16_t* scratch);
void widened_attention(const Heads<uint16_t>& q, const Heads<uint16_t>& k, const Heads<uint16_t>& v,
                       const AttentionShape& shape, int64_t begin, int64_t end, const Heads<uint16_t>& out,
                       float* stats, uint16_t* scratch);
void attention(const Heads<float>& q, const Heads<float>& k, const Heads<float>& v,
               const AttentionShape& shape, int64_t begin, int64_t end, const Heads<float>& out, float* stats,
               uint16_t* scratch);

/// Writes the gradients of q, k and v from that of the output, `gradient`.
void attention_backward(const Heads<uint16_t>& q, const Heads<uint16_t>& k, const Heads<uint16_t>& v,
                        const AttentionShape& shape, int64_t begin, int64_t end,
                        const Heads<uint16_t>& gradient, const float* stats, const Heads<uint16_t>& dq,
                        const Heads<uint16_t>& dk, const Heads<uint16_t>& dv, uint16_t* scratch);
void widened_attention_backward(const Heads<uint16_t>& q, const Heads<uint16_t>& k, const Heads<uint16_t>& v,
                                const AttentionShape& shape, int64_t begin, int64_t end,
                                const Heads<uint16_t>& gradient, const float* stats,
                                const Heads<uint16_t>& dq, const Heads<uint16_t>& dk,
                                const Heads<uint16_t>& dv, uint16_t* scratch);
void attention_backward(const Heads<float>& q, const Heads<float>& k, const Heads<float>& v,
                        const AttentionShape& shape, int64_t begin, int64_t end, const Heads<float>& gradient,
                        const float* stats, const Heads<float>& dq, const Heads<float>& dk,
                        const Heads<float>& dv, uint16_t* scratch);

}  // namespace tessera::ops::avx512
