// SPDX-License-Identifier: Apache-2.0
// CUDA graphs behind ops/device/graph.h.
#pragma once

#include <memory>

#include "tessera/ops/device/graph.h"

namespace tessera::cuda {

/// On the thread's current device and stream, which must not be the default one. `beside`:
/// ops::MakeDeviceGraph; one of this function's.
std::unique_ptr<ops::DeviceGraph> make_graph(const ops::DeviceGraph* beside);

}  // namespace tessera::cuda
