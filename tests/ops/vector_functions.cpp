#include "tests/ops/vector_functions.h"

#include "tessera/ops/vector_math.h"

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

using Here = Functions<CompiledFor>;
template <>
const Function Here::times_power = each_times_power;
template <>
const Function Here::reciprocal = each<vectors::reciprocal>;
template <>
const Function Here::exp = each<vectors::exp>;
template <>
const Function Here::precise_exp = each<vectors::precise_exp>;
template <>
const Function Here::exp2_for_bf16 = each<vectors::exp2_for_bf16>;
template <>
const Function Here::gelu = each<vectors::gelu>;
template <>
const Function Here::gelu_derivative = each<vectors::gelu_derivative>;

}  // namespace tessera::ops::vectors
