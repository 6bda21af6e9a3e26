// SPDX-License-Identifier: Apache-2.0
// Linear layers in bf16 on a device whose own library of products also adds biases and residuals and sums
// gradients: a pass over memory less for each. Differentiable once.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/device/products.h"
#include "tessera/ops/kept_input.h"

namespace tessera::ops {

/// Compares each product, for two small layers, one of odd sizes, with LibTorch's, by itself, and takes those
/// that differ or throw out of the table. A text for each of them, like remove_faulty's of check_kernels.h.
std::vector<std::string> remove_faulty(device::DeviceProducts& products, at::Device device);

/// The device of these tensors has a table of products, and it takes them.
bool has_device_products(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

/// device::DeviceProducts::parameter_gradients. Requires: has_device_products of both, and they are
/// contiguous.
std::pair<at::Tensor, at::Tensor> device_parameter_gradients(const at::Tensor& gradient, const at::Tensor& x);

/// residual + gelu(x weight^T + bias), the last two where asked for; shapes as in linear.h, `weight`: [out,
/// in]; x is what `made` says, if there is such. Requires: has_device_products, and a residual of bf16.
at::Tensor device_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                         const std::optional<at::Tensor>& residual, bool gelu,
                         const RecomputeFrom& made = std::nullopt);

/// A device has products for these, and kernels for their gradients in parts: what device_linear_parts needs.
bool has_device_linear_parts(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

/// Views of the columns of x weight^T + bias in three equal parts, each [..., out / 3]. Their gradients are
/// put together in a pass that also sums them for the bias. x is what `made` says, a norm's rows, if there is
/// such. Requires: has_device_linear_parts.
std::vector<at::Tensor> device_linear_parts(const at::Tensor& x, const at::Tensor& weight,
                                            const at::Tensor& bias, const RecomputeFrom& made = std::nullopt);

}  // namespace tessera::ops
