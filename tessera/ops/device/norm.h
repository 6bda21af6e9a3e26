// SPDX-License-Identifier: Apache-2.0
// Layer normalisation by a device's own kernels (kernels.h). Private to the room.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

namespace tessera::ops {

/// There are kernels for these, all of one dtype.
bool has_device_norm(const at::Tensor& x, const at::Tensor& added, const at::Tensor& weight,
                     const at::Tensor& bias);

/// The rows and the sum of normed() in layer_norm.h. Requires: has_device_norm.
std::pair<at::Tensor, at::Tensor> device_norm(const at::Tensor& x, const at::Tensor& added,
                                              const at::Tensor& weight, const at::Tensor& bias,
                                              double epsilon);

}  // namespace tessera::ops
