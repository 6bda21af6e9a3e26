// SPDX-License-Identifier: Apache-2.0
// Layer normalisation over the last dim. Differentiable once. Any device and float dtype.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

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

/// What a norm made, and of what. A layer that keeps x for backward, where others do, makes `rows` of it
/// again.
struct LayerNormOutput {
  at::Tensor x;     // [..., width]; undefined: a layer keeps `rows` for backward
  Norm norm;        // undefined: none
  at::Tensor rows;  // layer_norm(x, norm)
  /// rows = gather(layer_norm(x, norm)) where other ranks hold some of them. Collective.
  std::function<at::Tensor(const at::Tensor& own)> gather = {};
};

/// `rows` once more, of x; without a gradient. Requires: x.x is defined.
at::Tensor made_again(const LayerNormOutput& x);

/// Of x = `given` + `added`, for whoever goes on with that sum as well: a residual, whose gradient kernels
/// then add to the norm's in the same pass. `added`: as `given`, or undefined for 0.
LayerNormOutput normed(const at::Tensor& given, const Norm& norm, const at::Tensor& added = {});

}  // namespace tessera::ops
