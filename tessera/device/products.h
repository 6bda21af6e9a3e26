// SPDX-License-Identifier: Apache-2.0
// The products of linear layers that this process uses on the devices of one type: those of a library which
// also adds biases and residuals and sums gradients (ops/device/linear.h).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <utility>

namespace tessera::device {

/// What a library offers. Tensors are bf16, contiguous and of the device; none has size 0. Safe from any
/// thread. A function may be null: LibTorch's operations take its place then.
struct DeviceProducts {
  /// residual + x weight^T + bias, rounded once. `x`: [rows, in]; `weight`: [out, in]; `bias`: [out];
  /// `residual`: [rows, out], or undefined for 0; result [rows, out].
  at::Tensor (*linear)(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                       const at::Tensor& residual) = nullptr;
  /// `linear` is not given a residual if this is false; it is then added by a separate operation.
  bool adds_residual = true;
  /// The transpose of `gradient` [rows, out] times `x` [rows, in], and the sums of gradient's columns: [out,
  /// in] and [out].
  std::pair<at::Tensor, at::Tensor> (*parameter_gradients)(const at::Tensor& gradient,
                                                           const at::Tensor& x) = nullptr;
  /// The first of these alone.
  at::Tensor (*weight_gradient)(const at::Tensor& gradient, const at::Tensor& x) = nullptr;
};

/// Linear layers on devices of this type are computed with these from now on. The table is copied. Null: as
/// elsewhere. Called while no operation runs.
void register_products(const DeviceProducts* products, c10::DeviceType device);
/// Null where there are none.
const DeviceProducts* products_for(c10::Device device);

}  // namespace tessera::device
