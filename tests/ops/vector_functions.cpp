#include "tests/ops/vector_functions.h"

#include "tessera/ops/vector_math.h"

namespace tessera::ops::vectors {

using Tested = Functions<CompiledFor>;

template <>
void Tested::reciprocal(const float* x, float* y) {
  store(y, vectors::reciprocal(load(x)));
}
template <>
void Tested::times_power(const float* x, float* y) {
  const Floats n = load(x);
  store(y, vectors::times_power(load(y), n, n));
}
template <>
void Tested::exp(const float* x, float* y) {
  store(y, vectors::exp(load(x)));
}
template <>
void Tested::precise_exp(const float* x, float* y) {
  store(y, vectors::precise_exp(load(x)));
}
template <>
void Tested::exp2_for_bf16(const float* x, float* y) {
  store(y, vectors::exp2_for_bf16(load(x)));
}
template <>
void Tested::gelu(const float* x, float* y) {
  store(y, vectors::gelu(load(x)));
}
template <>
void Tested::gelu_derivative(const float* x, float* y) {
  store(y, vectors::gelu_derivative(load(x)));
}

}  // namespace tessera::ops::vectors
