// SPDX-License-Identifier: Apache-2.0
// The gradient of a linear layer's result. The gradient of the bias is the sums of its columns: a kernel that
// writes the gradient can add them up on the way, which spares a pass that reads it again.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace tessera::ops {

struct SummedGradient {
  at::Tensor rows;  // [rows, width]
  at::Tensor sums;  // [width], of the columns; undefined: not made
};

/// A device's kernels put three gradients like this one side by side in one pass.
bool has_summed_concat(const at::Tensor& like);

/// Three gradients [..., width] side by side: [rows, 3 * width], and the sums of the columns. Requires:
/// has_summed_concat(parts[0]), and all have its shape, dtype and device.
SummedGradient summed_concat(const std::vector<at::Tensor>& parts);

}  // namespace tessera::ops
