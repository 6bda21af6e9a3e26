// SPDX-License-Identifier: Apache-2.0
// Points in time of the host or of a device's work. Private to this room.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <chrono>
#include <optional>

namespace tessera::profile {

/// Now on the CPU; on a device the moment at which it has done what is queued on the thread's current stream.
/// Any thread.
class Moment {
 public:
  explicit Moment(c10::Device device);
  /// Both of one device. Requires: it has reached both (eager::wait_for).
  double seconds_to(const Moment& later) const;

 private:
  std::chrono::steady_clock::time_point host_;
  std::optional<c10::Event> event_;
};

}  // namespace tessera::profile
