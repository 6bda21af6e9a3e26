// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/cpu/vector_few_query_rows.h"

namespace tessera::ops::vectors {
template struct FewQueryImage<CompiledFor, uint16_t>;
template struct FewQueryImage<CompiledFor, float>;
}  // namespace tessera::ops::vectors
