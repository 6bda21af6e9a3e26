#include "tessera/ops/device_graph.h"

#include <atomic>

namespace tessera::ops {
namespace {

std::atomic<MakeDeviceGraph> graphs_in_use = nullptr;
std::atomic<c10::DeviceType> device_of_graphs = c10::DeviceType::CUDA;

}  // namespace

void use_device_graphs(MakeDeviceGraph make, c10::DeviceType device) {
  device_of_graphs = device;
  graphs_in_use = make;
}

MakeDeviceGraph device_graphs(c10::Device device) {
  return device.type() == device_of_graphs.load() ? graphs_in_use.load() : nullptr;
}

}  // namespace tessera::ops
