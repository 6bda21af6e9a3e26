// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/cpu/vector_batch_norm_rows.h"

namespace tessera::ops::vectors {
template struct BatchNormRows<CompiledFor, uint16_t>;
template struct BatchNormRows<CompiledFor, float>;
}  // namespace tessera::ops::vectors
