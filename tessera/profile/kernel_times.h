// SPDX-License-Identifier: Apache-2.0
// How often each kernel of a device runs and how long it takes, by LibTorch's profiler (Kineto).
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tessera::profile {

struct KernelTime {
  std::string name;    // as the profiler gives it, of kernels demangled
  int64_t calls = 0;   // in all of `work`
  double seconds = 0;  // likewise; on the CPU without the operations that it calls
};

/// Runs `work` and returns what it ran on `device`, the longest in total first: on a GPU kernels, copies and
/// fills; on the CPU LibTorch's operations and the scopes of Tessera's own. Waits for the device. One at a
/// time in a process. Errors: UserError where the profiler saw nothing, as without CUPTI.
std::vector<KernelTime> kernel_times(c10::Device device, const std::function<void()>& work);

}  // namespace tessera::profile
