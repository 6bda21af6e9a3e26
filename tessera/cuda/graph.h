// SPDX-License-Identifier: Apache-2.0
// CUDA graphs behind device/graph.h.
#pragma once

#include <memory>

#include "tessera/device/graph.h"

namespace tessera::cuda {

/// On the thread's current device and stream, which must not be the default one. `beside`:
/// device::MakeDeviceGraph; one of this function's.
std::unique_ptr<device::DeviceGraph> make_graph(const device::DeviceGraph* beside);

}  // namespace tessera::cuda
