// SPDX-License-Identifier: Apache-2.0
// A device's own fused kernels, and when an op uses them: the layer norm, AdamW, cross entropy and the
// rounding to fp8 of this room, and the uint8 images of training (eager/device_input.h). Where there are
// none, or a case does not fit, LibTorch's operations compute the same in more passes over memory.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>

#include <optional>
#include <string>
#include <vector>

#include "tessera/ops/device/kernel_table.h"

namespace tessera::ops {

/// From now on tensors on devices of this type are computed with these, which outlive their use; null, and
/// for a kernel that is null: by LibTorch's operations. Called while no op runs.
void use_device_kernels(const DeviceKernels* kernels, c10::DeviceType device);

/// The kernels for this tensor's device; null where there are none, and for an empty tensor.
const DeviceKernels* device_kernels(const at::Tensor& t);
/// The same, but null also where one of these is missing (members of the table: &DeviceKernels::adamw).
template <typename... Members>
const DeviceKernels* device_kernels(const at::Tensor& t, Members... needed) {
  const DeviceKernels* kernels = device_kernels(t);
  return kernels != nullptr && ((kernels->*needed != nullptr) && ...) ? kernels : nullptr;
}

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

/// Compares each kernel of this room with LibTorch's operations, by itself, and sets those that differ or
/// throw to null. A text for each of these: "kernel 'layer_norm' differs from LibTorch: gradient of the
/// weight off by 0.03 of the largest value (tolerance 0.02); LibTorch's operations are used instead". Leaves
/// the device without kernels; called while no op runs.
std::vector<std::string> remove_faulty(DeviceKernels& kernels, at::Device device);

}  // namespace tessera::ops
