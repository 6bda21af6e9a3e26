// SPDX-License-Identifier: Apache-2.0
// The words of vectors.h and vector_math.h as functions of 16 numbers, for tests: only a file that is
// compiled for their instructions may include those.
#pragma once

#include "tessera/ops/cpu/vector_sets.h"

namespace tessera::ops::vectors {

/// y = f(x). x, y: 16 numbers each.
using Function = void (*)(const float* x, float* y);

/// Set: of vector_sets.h. times_power: y * 2^floor(x), in y.
template <typename Set>
struct Functions {
  static const Function reciprocal, times_power, exp, precise_exp, exp2_for_bf16, gelu, gelu_derivative;
};
extern template struct Functions<Avx2>;
extern template struct Functions<Avx512>;

}  // namespace tessera::ops::vectors
