// SPDX-License-Identifier: Apache-2.0
// This process's memory, from the kernel, and a device's. Safe from any thread.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

namespace tessera::train {

int64_t resident_bytes();       // now
int64_t peak_resident_bytes();  // the highest so far
/// Of resident_bytes(), pages of shared memory, which the machine holds once and the kernel counts in every
/// process that has touched them: the messages between the ranks of a host, a data set that they hold
/// together.
int64_t shared_resident_bytes();

struct DeviceMemory {
  int64_t bytes = 0, peak_bytes = 0;  // of tensors there: now, and the most so far
};
/// By LibTorch's allocator of the device, without waiting for it; nothing for the CPU.
std::optional<DeviceMemory> device_memory(at::Device device);

}  // namespace tessera::train
