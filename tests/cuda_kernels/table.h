// SPDX-License-Identifier: Apache-2.0
// The kernels on the CPU as a table, and their use there.
#pragma once

#include "tessera/cuda/kernels.h"
#include "tessera/device/kernels.h"
#include "tessera/ops/cpu/cpu.h"

namespace tessera::cuda {

inline constexpr device::DeviceKernels kOnCpu = kernels_on([](int) -> void* { return nullptr; });

/// While one lives the CPU has these kernels in place of its own.
class UsingKernels {
 public:
  explicit UsingKernels(const device::DeviceKernels& kernels = kOnCpu) {
    device::register_kernels(&kernels, at::kCPU);
  }
  ~UsingKernels() { device::register_kernels(nullptr, at::kCPU); }
  UsingKernels(const UsingKernels&) = delete;
  UsingKernels& operator=(const UsingKernels&) = delete;

 private:
  ops::WithoutKernels without_;
};

}  // namespace tessera::cuda
