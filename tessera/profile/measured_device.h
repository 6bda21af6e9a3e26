// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

namespace tessera::profile {

/// Where measured models compute.
struct MeasuredDevice {
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  bool keeps_activations = false;  // eager::DeviceChoices
};

}  // namespace tessera::profile
