// Layer normalisation over the last dim. Differentiable once. Any device and float dtype.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

namespace tessera::ops {

/// (x - mean) / sqrt(variance + epsilon) * weight + bias. `x`: [..., width]; `weight`, `bias`: [width].
at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double epsilon);

/// The same of x + added, and that sum, for whoever goes on with it: a residual, whose gradient a device's
/// kernels then add to the norm's in the same pass. `added`: as x, or undefined for 0.
std::pair<at::Tensor, at::Tensor> layer_norm_of_sum(const at::Tensor& x, const at::Tensor& added,
                                                    const at::Tensor& weight, const at::Tensor& bias,
                                                    double epsilon);

}  // namespace tessera::ops
