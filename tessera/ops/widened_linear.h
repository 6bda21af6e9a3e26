// SPDX-License-Identifier: Apache-2.0
// Linear layers in bf16 on CPUs that have neither kernels of this room nor instructions for it.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "tessera/ops/kept_input.h"

namespace tessera::ops {

/// LibTorch would emulate these products in bf16, at a fraction of the rate of products in fp32: all three
/// are bf16 on a CPU with neither kernels nor bf16 instructions.
bool should_widen(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

/// residual + gelu(x weight^T + bias), the last two where asked for. In fp32 are 512 rows of `x`, of the
/// weight and of what comes of them at a time; what is returned and kept for backward is bf16. `x`: [...,
/// in], what `normed` makes if there is such; `weight`: [out, in]; `bias`: [out]; `residual` and the result:
/// [..., out].
at::Tensor widened_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                          const std::optional<at::Tensor>& residual, bool gelu,
                          const RecomputeFrom& made = std::nullopt);

}  // namespace tessera::ops
