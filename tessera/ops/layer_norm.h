// Layer normalisation over the last dim. Differentiable once. Any device and float dtype.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::ops {

/// (x - mean) / sqrt(variance + epsilon) * weight + bias. `x`: [..., width]; `weight`, `bias`: [width].
at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double epsilon);

/// The parameters of one.
struct Norm {
  at::Tensor weight, bias;  // [width]
  double epsilon = 0;
};

inline at::Tensor layer_norm(const at::Tensor& x, const Norm& norm) {
  return layer_norm(x, norm.weight, norm.bias, norm.epsilon);
}

/// What one made, and of what: a layer that reads `value` need not keep it for backward.
struct Normed {
  at::Tensor value;  // layer_norm(x, norm)
  at::Tensor x;      // [..., width]
  Norm norm;
};

inline Normed normed(const at::Tensor& x, const Norm& norm) { return {layer_norm(x, norm), x, norm}; }

}  // namespace tessera::ops
