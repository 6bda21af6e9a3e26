// SPDX-License-Identifier: Apache-2.0
// Convolutions that make their input again. Differentiable once. Any device and float dtype.
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/ops/batch_norm.h"

namespace tessera::ops {

/// at::conv2d(x, weight, {}, stride, padding), of a square kernel and as much padding as leaves `stride` 1's
/// sizes: bit for bit, gradients as well. What a norm made is not kept for backward, which makes it again.
/// `weight`: [out, in, kernel, kernel], `kernel` odd.
at::Tensor convolution(const BatchNormOutput& x, const at::Tensor& weight, int64_t stride);

}  // namespace tessera::ops
