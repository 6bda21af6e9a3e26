// SPDX-License-Identifier: Apache-2.0
// The GPUs of this process. No LibTorch here, so that nvcc compiles it fast. Safe from any thread. A function
// that is given a GPU leaves it as the thread's current device.
#pragma once

#include <cstddef>
#include <string>

namespace tessera::cuda {

struct Device {
  std::string name;
  int major = 0;
  int minor = 0;
  size_t total_bytes = 0;
  size_t free_bytes = 0;
};

/// 0 without a GPU or driver.
int device_count();
/// Requires: 0 <= index < device_count().
Device device(int index);
/// Runs a small kernel and compares what it wrote; throws a UserError when this build has no code for the
/// GPU.
void check_device(int index);

}  // namespace tessera::cuda
