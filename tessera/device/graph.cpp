// SPDX-License-Identifier: Apache-2.0
#include "tessera/device/graph.h"

#include "tessera/device/registered.h"

namespace tessera::device {
namespace {

Registered<MakeDeviceGraph> registered_graphs;

}  // namespace

void register_graphs(MakeDeviceGraph make, c10::DeviceType device) {
  registered_graphs.set(make != nullptr ? &make : nullptr, device);
}

MakeDeviceGraph graphs_for(c10::Device device) {
  const MakeDeviceGraph* make = registered_graphs.get(device);
  return make != nullptr ? *make : nullptr;
}

}  // namespace tessera::device
