// SPDX-License-Identifier: Apache-2.0
// The device that this process, a rank, computes on.
#pragma once

#include <c10/core/Device.h>

namespace tessera::device {

struct CudaPlugin;  // cuda_plugin.h

/// The GPU of this process. Groups of ranks that connect after use_cuda() have an NCCL group beside the one
/// of the host's memory.
struct CudaInUse {
  const CudaPlugin* plugin = nullptr;  // null: none
  int device = 0;
  bool shared = false;  // several ranks may compute on one GPU: no NCCL, which refuses that
};
void use_cuda(CudaInUse device);
CudaInUse cuda_in_use();
/// That GPU; the CPU where there is none.
c10::Device device_in_use();

}  // namespace tessera::device
