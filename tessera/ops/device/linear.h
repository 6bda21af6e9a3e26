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

#include "tessera/ops/kept_input.h"

namespace tessera::ops {

/// What such a library offers. Tensors are bf16, contiguous and of the device; none has size 0. Safe from any
/// thread. A function may be null: LibTorch's operations take its place then.
struct DeviceProducts {
  /// residual + x weight^T + bias, rounded once. `x`: [rows, in]; `weight`: [out, in]; `bias`: [out];
  /// `residual`: [rows, out], or undefined for 0; result [rows, out].
  at::Tensor (*linear)(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                       const at::Tensor& residual) = nullptr;
  /// `linear` is not given a residual if this is false; it is then added in a pass of its own.
  bool adds_residual = true;
  /// The transpose of `gradient` [rows, out] times `x` [rows, in], and the sums of gradient's columns: [out,
  /// in] and [out].
  std::pair<at::Tensor, at::Tensor> (*parameter_gradients)(const at::Tensor& gradient,
                                                           const at::Tensor& x) = nullptr;
  /// The first of these alone.
  at::Tensor (*weight_gradient)(const at::Tensor& gradient, const at::Tensor& x) = nullptr;
};

/// Compares each product, for two small layers, one of odd sizes, with LibTorch's, by itself, and takes those
/// that differ or throw out of the table. A text for each of them, like remove_faulty's of kernels.h.
std::vector<std::string> remove_faulty(DeviceProducts& products, at::Device device);

/// From now on linear layers on devices of this type are computed with these, which outlive their use; null:
/// as elsewhere. Called while no op runs.
void use_device_products(const DeviceProducts* products, c10::DeviceType device);
/// The device of these tensors has a table of products, and it takes them.
bool has_device_products(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);

/// DeviceProducts::parameter_gradients. Requires: has_device_products of both, and they are contiguous.
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
