// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/vector_keyless_rows.h"

namespace tessera::ops::vectors {
template struct KeylessImage<CompiledFor, uint16_t>;
template struct KeylessImage<CompiledFor, float>;
}  // namespace tessera::ops::vectors
