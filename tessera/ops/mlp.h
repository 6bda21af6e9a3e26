// SPDX-License-Identifier: Apache-2.0
// The two layers of an MLP. Differentiable once. Any device and float dtype.
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/ops/layer_norm.h"
#include "tessera/ops/linear.h"

namespace tessera::ops {

/// fc2(gelu(fc1(x))) [..., out], plus `residual` [..., out] where that is defined. `x.rows`: [..., in];
/// weights: [hidden, in] and [out, hidden], biases [hidden] and [out]. What linear_gelu and linear_add make
/// of it. Of its own it keeps for backward what is before GELU alone, [..., hidden]; what is after it is made
/// again. On CPUs with kernels that and the way back through GELU are part of products. `keeps_activations`:
/// the layers keep what the norm and the GELU made for backward (on CPUs with kernels what the norm made
/// alone); values and gradients are the same bits, but for the order in which a device with kernels sums the
/// gradient of fc1's bias. `use`: of the result, see linear.h.
at::Tensor mlp(LayerNormOutput x, const at::Tensor& fc1_weight, const at::Tensor& fc1_bias,
               const at::Tensor& fc2_weight, const at::Tensor& fc2_bias, const at::Tensor& residual = {},
               bool keeps_activations = false, Use use = Use::kRead);

}  // namespace tessera::ops
