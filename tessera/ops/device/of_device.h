// SPDX-License-Identifier: Apache-2.0
// What a plug-in offers to ops for the devices of one type. Private to this room.
#pragma once

#include <c10/core/Device.h>

#include <atomic>

namespace tessera::ops {

/// A pointer that is null for all other devices. Set while no op runs; read from any thread.
template <typename Pointer>
class OfDevice {
 public:
  void set(Pointer pointer, c10::DeviceType device) {
    device_ = device;
    pointer_ = pointer;
  }
  Pointer get(c10::Device device) const {
    return device.type() == device_.load() ? pointer_.load() : nullptr;
  }

 private:
  std::atomic<Pointer> pointer_ = nullptr;
  std::atomic<c10::DeviceType> device_ = c10::DeviceType::CUDA;
};

}  // namespace tessera::ops
