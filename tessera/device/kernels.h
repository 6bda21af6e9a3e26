// SPDX-License-Identifier: Apache-2.0
// The fused kernels that this process uses on the devices of one type. Operations ask for them (ops/device/,
// eager/device_input.h); where there are none, or a case does not fit, LibTorch's operations compute the same
// in more passes over memory.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceGuard.h>

#include <optional>

#include "tessera/device/kernel_table.h"

namespace tessera::device {

/// Tensors on devices of this type are computed with these kernels from now on. The table is copied. Null,
/// and a kernel that is null: by LibTorch's operations. Called while no operation runs.
void register_kernels(const DeviceKernels* kernels, c10::DeviceType device);

/// The kernels for this tensor's device; null where there are none, and for an empty tensor.
const DeviceKernels* kernels_for(const at::Tensor& t);
/// The same, but null also where one of these is missing (members of the table: &DeviceKernels::adamw).
template <typename... Members>
const DeviceKernels* kernels_for(const at::Tensor& t, Members... needed) {
  const DeviceKernels* kernels = kernels_for(t);
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

}  // namespace tessera::device
