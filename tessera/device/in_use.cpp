// SPDX-License-Identifier: Apache-2.0
#include "tessera/device/in_use.h"

#include <atomic>

namespace tessera::device {
namespace {

/// A process is a rank and computes on one GPU.
std::atomic<const CudaPlugin*> plugin_in_use = nullptr;
std::atomic<int> gpu_in_use = 0;
std::atomic<bool> device_is_shared = false;

}  // namespace

void use_cuda(CudaInUse device) {
  gpu_in_use = device.device;
  device_is_shared = device.shared;
  plugin_in_use = device.plugin;
}

CudaInUse cuda_in_use() { return {plugin_in_use, gpu_in_use, device_is_shared}; }

c10::Device device_in_use() {
  const CudaInUse cuda = cuda_in_use();
  if (cuda.plugin == nullptr) return c10::kCPU;
  return {c10::kCUDA, static_cast<c10::DeviceIndex>(cuda.device)};
}

}  // namespace tessera::device
