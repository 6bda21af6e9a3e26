// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/cpu/vector_attention_heads.h"

namespace tessera::ops::vectors {
template struct AttentionKernels<CompiledFor, float, float>;
template struct AttentionKernels<CompiledFor, uint16_t, float>;
}  // namespace tessera::ops::vectors
