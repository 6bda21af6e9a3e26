#include "tests/ops/vector_functions.h"

#include "tessera/ops/vector_math.h"

namespace tessera::ops::vectors {

template <typename Set>
void Functions<Set>::reciprocal(const float* x, float* y) {
  store(y, vectors::reciprocal(load(x)));
}
template <typename Set>
void Functions<Set>::times_power(const float* x, float* y) {
  const Floats n = load(x);
  store(y, vectors::times_power(load(y), n, n));
}
template <typename Set>
void Functions<Set>::exp(const float* x, float* y) {
  store(y, vectors::exp(load(x)));
}
template <typename Set>
void Functions<Set>::precise_exp(const float* x, float* y) {
  store(y, vectors::precise_exp(load(x)));
}
template <typename Set>
void Functions<Set>::exp2_for_bf16(const float* x, float* y) {
  store(y, vectors::exp2_for_bf16(load(x)));
}
template <typename Set>
void Functions<Set>::gelu(const float* x, float* y) {
  store(y, vectors::gelu(load(x)));
}
template <typename Set>
void Functions<Set>::gelu_derivative(const float* x, float* y) {
  store(y, vectors::gelu_derivative(load(x)));
}

template struct Functions<CompiledFor>;

}  // namespace tessera::ops::vectors
