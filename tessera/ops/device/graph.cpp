// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/device/graph.h"

#include "tessera/ops/device/of_device.h"

namespace tessera::ops {
namespace {

OfDevice<MakeDeviceGraph> graphs_in_use;

}  // namespace

void use_device_graphs(MakeDeviceGraph make, c10::DeviceType device) { graphs_in_use.set(make, device); }

MakeDeviceGraph device_graphs(c10::Device device) { return graphs_in_use.get(device); }

}  // namespace tessera::ops
