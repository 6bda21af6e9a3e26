// SPDX-License-Identifier: Apache-2.0
// Linear layers by LibTorch's operations that make their input again. Private to the room.
#pragma once

#include "tessera/ops/kept_input.h"

namespace tessera::ops {

/// at::linear(x, weight, bias) and its gradients, bit for bit, where x is what `made` says. `x`: [..., in];
/// `weight`: [out, in]; `bias`: [out]; one device, one float dtype, no autocast: any.
at::Tensor plain_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                        const RecomputeFrom& made);

}  // namespace tessera::ops
