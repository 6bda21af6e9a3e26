// SPDX-License-Identifier: Apache-2.0
// Attention with products of bf16 by vdpbf16ps.
#include "tessera/ops/cpu/vector_attention_heads.h"

namespace tessera::ops::vectors {
template struct AttentionKernels<CompiledFor, uint16_t, uint16_t>;
}  // namespace tessera::ops::vectors
