// SPDX-License-Identifier: Apache-2.0
// Linear layers with what follows them. Differentiable once. Any device and float dtype.
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/ops/batch_norm.h"
#include "tessera/ops/gelu_output.h"
#include "tessera/ops/layer_norm.h"

namespace tessera::ops {

/// Whether something reads a layer's result. Where nothing does, as in a second run whose result is known, it
/// has the shape and the gradients that it has else, and any values: kernels leave its product out.
enum class Use { kRead, kUnread };

/// x weight^T + bias. `x`: [..., in]; `weight`: [out, in], or [out, ...] with `in` elements a row; `bias`:
/// [out]; result [..., out].
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                  Use use = Use::kRead);
/// gelu(x weight^T + bias), the exact GELU.
at::Tensor linear_gelu(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);
/// residual + x weight^T + bias. `residual`: [..., out].
at::Tensor linear_add(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                      const at::Tensor& residual);

/// The same of x.rows, bit for bit, gradients as well, but that what the norm or the GELU made is not kept
/// for backward, which makes it again.
at::Tensor linear(const LayerNormOutput& x, const at::Tensor& weight, const at::Tensor& bias);
at::Tensor linear_gelu(const LayerNormOutput& x, const at::Tensor& weight, const at::Tensor& bias);
at::Tensor linear(const GeluOutput& x, const at::Tensor& weight, const at::Tensor& bias,
                  Use use = Use::kRead);
at::Tensor linear_add(const GeluOutput& x, const at::Tensor& weight, const at::Tensor& bias,
                      const at::Tensor& residual);
/// Of every place of the images: [samples, height, width, out].
at::Tensor linear(const BatchNormOutput& x, const at::Tensor& weight, const at::Tensor& bias);

}  // namespace tessera::ops
