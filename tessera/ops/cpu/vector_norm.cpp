// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/cpu/vector_norm_rows.h"

namespace tessera::ops::vectors {
template struct LayerNormRows<CompiledFor, uint16_t>;
template struct LayerNormRows<CompiledFor, float>;
}  // namespace tessera::ops::vectors
