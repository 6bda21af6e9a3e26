// SPDX-License-Identifier: Apache-2.0
// Comparison of a device's fused kernels with LibTorch's operations, once at the start of a program.
#pragma once

#include <c10/core/Device.h>

#include <string>
#include <vector>

#include "tessera/device/kernel_table.h"

namespace tessera::ops {

/// Compares each kernel that this room uses with LibTorch's operations, by itself, and sets those that differ
/// or throw to null. A text for each of these: "kernel 'layer_norm' differs from LibTorch: gradient of the
/// weight off by 0.03 of the largest value (tolerance 0.02); LibTorch's operations are used instead". Leaves
/// the device without kernels; called while no op runs.
std::vector<std::string> remove_faulty(device::DeviceKernels& kernels, c10::Device device);

}  // namespace tessera::ops
