// SPDX-License-Identifier: Apache-2.0
// The exact GELU (timm's nn.GELU), by a device's own kernels where it has some, else by LibTorch. Any device
// and float dtype.
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/ops/summed_gradient.h"

namespace tessera::ops {

/// x Phi(x), of x's shape. Differentiable once.
at::Tensor exact_gelu(const at::Tensor& x);

// For autograd functions: these are not differentiable.

/// exact_gelu(x).
at::Tensor exact_gelu_forward(const at::Tensor& x);
/// gradient * gelu'(x), where `gradient`, of x's shape, is that of exact_gelu(x).
at::Tensor exact_gelu_backward(const at::Tensor& gradient, const at::Tensor& x);
/// The same, written over `gradient`; returns exact_gelu(x), the same bits as of exact_gelu_forward. A
/// device's kernel reads x once for both. Requires: `gradient` is contiguous.
at::Tensor exact_gelu_backward_and_output(const at::Tensor& gradient, const at::Tensor& x);

/// exact_gelu_backward(gradient, x) of [rows, width], with the sums of its columns where a device has a
/// kernel that makes both in one pass.
SummedGradient exact_gelu_backward_and_sums(const at::Tensor& gradient, const at::Tensor& x);

}  // namespace tessera::ops
