// SPDX-License-Identifier: Apache-2.0
// Uint8Images to numbers by a device's own kernel.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "tessera/data/batch.h"
#include "tessera/device/kernel_table.h"
#include "tessera/eager/device_input.h"

namespace tessera::eager {

/// numbers_of (device_input.h) in one pass; what the kernel has to know of a batch travels in one copy.
/// Requires: device::kernels_for(bytes, &device::DeviceKernels::uint8_images), and the batch itself holds
/// uint8 images.
at::Tensor fused_uint8_images(const data::Batch& batch, const at::Tensor& bytes,
                              const Normalisation& normalisation);

/// As ops::remove_faulty, for the kernel of images: compares a small batch with everything that can be left
/// to a device.
std::vector<std::string> remove_faulty_uint8_images(device::DeviceKernels& kernels, at::Device device);

}  // namespace tessera::eager
