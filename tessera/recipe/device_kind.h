// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace tessera::recipe {

/// Where a rank computes. kAuto: on a GPU where one answers, else on the CPU.
enum class DeviceKind { kAuto, kCpu, kCuda };

}  // namespace tessera::recipe
