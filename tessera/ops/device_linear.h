// SPDX-License-Identifier: Apache-2.0
// Linear layers in bf16 on a device whose own library of products also adds biases and residuals and sums
// gradients: a pass over memory less for each. Differentiable once.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <optional>
#include <string>
#include <utility>

#include "tessera/ops/kept_input.h"

namespace tessera::ops {

/// What such a library offers. Tensors are bf16, contiguous and of the device; none has size 0. Safe from any
/// thread.
struct DeviceProducts {
  /// residual + x weight^T + bias, rounded once. `x`: [rows, in]; `weight`: [out, in]; `bias`: [out];
  /// `residual`: [rows, out], or undefined for 0; result [rows, out].
  at::Tensor (*linear)(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                       const at::Tensor& residual);
  /// The transpose of `gradient` [rows, out] times `x` [rows, in], and the sums of gradient's columns: [out,
  /// in] and [out].
  std::pair<at::Tensor, at::Tensor> (*parameter_gradients)(const at::Tensor& gradient, const at::Tensor& x);
};

/// Products of two small layers, one of odd sizes, beside LibTorch's: empty, or what was found. A table that
/// throws is described alike.
std::string fault_of(const DeviceProducts& products, at::Device device);

/// From now on linear layers on devices of this type are computed with these, which outlive their use; null:
/// as elsewhere. Called while no op runs.
void use_device_products(const DeviceProducts* products, c10::DeviceType device);
/// There are some for these tensors.
bool has_device_products(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

/// DeviceProducts::parameter_gradients. Requires: has_device_products of both, and they are contiguous.
std::pair<at::Tensor, at::Tensor> device_parameter_gradients(const at::Tensor& gradient, const at::Tensor& x);

/// residual + gelu(x weight^T + bias), the last two where asked for; shapes as in linear.h, `weight`: [out,
/// in]; x is what `made` says, if there is such. Requires: has_device_products, and a residual of bf16.
at::Tensor device_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                         const std::optional<at::Tensor>& residual, bool gelu,
                         const MadeBy& made = std::nullopt);

}  // namespace tessera::ops
