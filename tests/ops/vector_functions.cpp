// SPDX-License-Identifier: Apache-2.0
#include "tests/ops/vector_functions.h"

#include "tessera/ops/cpu/vector_math.h"

namespace tessera::ops::vectors {
namespace {

template <Floats (*f)(Floats)>
void each(const float* x, float* y) {
  store(y, f(load(x)));
}

void each_times_power(const float* x, float* y) {
  const Floats n = load(x);
  store(y, times_power(load(y), n, n));
}

}  // namespace

template <typename Set>
const Function Functions<Set>::times_power = each_times_power;
template <typename Set>
const Function Functions<Set>::reciprocal = each<vectors::reciprocal>;
template <typename Set>
const Function Functions<Set>::exp = each<vectors::exp>;
template <typename Set>
const Function Functions<Set>::precise_exp = each<vectors::precise_exp>;
template <typename Set>
const Function Functions<Set>::exp2_for_bf16 = each<vectors::exp2_for_bf16>;
template <typename Set>
const Function Functions<Set>::gelu = each<vectors::gelu>;
template <typename Set>
const Function Functions<Set>::gelu_derivative = each<vectors::gelu_derivative>;

template struct Functions<CompiledFor>;

}  // namespace tessera::ops::vectors
