// SPDX-License-Identifier: Apache-2.0
// What a plug-in offers for the devices of one type, kept for the whole process. Private to this room.
#pragma once

#include <c10/core/Device.h>

#include <atomic>

namespace tessera::device {

/// A value for the devices of one type; there is none for all others. Set while no operation runs; read from
/// any thread.
template <typename Value>
class Registered {
 public:
  /// Keeps a copy of the value; null: from now on there is none.
  void set(const Value* value, c10::DeviceType device) {
    there_ = nullptr;
    if (value != nullptr) value_ = *value;
    device_ = device;
    there_ = value != nullptr ? &value_ : nullptr;
  }
  /// Null where there is none. The pointer stays valid; its value is that of the last set().
  const Value* get(c10::Device device) const {
    return device.type() == device_.load() ? there_.load() : nullptr;
  }

 private:
  Value value_ = {};
  std::atomic<const Value*> there_ = nullptr;
  std::atomic<c10::DeviceType> device_ = c10::DeviceType::CUDA;
};

}  // namespace tessera::device
