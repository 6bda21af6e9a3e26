// SPDX-License-Identifier: Apache-2.0
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

/// What a norm made, and of what.
struct LayerNormOutput {
  at::Tensor x;  // [..., width]; undefined: `rows` come from other ranks, and a layer keeps them for backward
  Norm norm;
  at::Tensor rows;  // layer_norm(x, norm)
};

/// Of x = `given` + `added`, for whoever goes on with that sum as well: a residual, whose gradient kernels
/// then add to the norm's in the same pass. `added`: as `given`, or undefined for 0.
LayerNormOutput normed(const at::Tensor& given, const Norm& norm, const at::Tensor& added = {});

}  // namespace tessera::ops
