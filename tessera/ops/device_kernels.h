// SPDX-License-Identifier: Apache-2.0
// A device's own fused kernels, and when an op uses them: the layer norm, AdamW, cross entropy and the
// rounding to fp8 of this room, and the pictures of training (train/device_input.h). Where there are none, or
// a case does not fit, LibTorch's operations compute the same in more passes over memory.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>

#include <optional>
#include <string>

#include "tessera/ops/kernel_table.h"

namespace tessera::ops {

/// From now on tensors on devices of this type are computed with these, which outlive their use; null: by
/// LibTorch. Called while no op runs.
void use_device_kernels(const DeviceKernels* kernels, c10::DeviceType device);

/// The kernels for this tensor; null: there are none for its device, or nothing is in it.
const DeviceKernels* device_kernels(const at::Tensor& t);

/// The tensor's dtype, if kernels take it.
std::optional<Number> number_of(const at::Tensor& t);

/// Kernels that follow are launched for the tensor's device, on its current stream, while this lives.
class KernelStream {
 public:
  KernelStream(const DeviceKernels& kernels, const at::Tensor& t)
      : guard_(t.device()), stream_(kernels.stream(t.device().index())) {}
  operator void*() const { return stream_; }  // NOLINT(google-explicit-constructor): an argument of theirs

 private:
  c10::DeviceGuard guard_;
  void* stream_;
};

/// Every op of this room with these kernels beside LibTorch's: empty, or what was found. Kernels that throw
/// are described alike. Leaves the device without kernels; called while no op runs.
std::string fault_of(const DeviceKernels& kernels, at::Device device);

}  // namespace tessera::ops
