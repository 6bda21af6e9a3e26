// SPDX-License-Identifier: Apache-2.0
// A wait for other ranks. Private to this room.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "tessera/base/running_time.h"

namespace tessera::mesh {

/// How far apart ranks of one start may come. A longer wait is spoken of, and ends when a stop is asked for:
/// a stop that comes while ranks are on their way takes effect in order, after the first step.
constexpr std::chrono::milliseconds kPatience{10'000};

/// What bounds the waits of one rendezvous.
struct WaitLimits {
  std::chrono::milliseconds limit;
  std::function<bool()> stop;  // may be empty; called from the waiting thread
  std::chrono::milliseconds patience = kPatience;
};

class Wait {
 public:
  /// `whom`: for the line on stderr that is written once, after the patience; empty: none is written. Called
  /// when needed.
  Wait(WaitLimits limits, std::function<std::string()> whom);

  /// To be asked between two looks; false when the limit is over. Errors: CommError (a stop is asked for and
  /// the patience is over).
  bool goes_on();
  /// Until the limit; at least 1 ms.
  std::chrono::milliseconds left();

 private:
  WaitLimits limits_;
  std::function<std::string()> whom_;
  RunningTime time_;
};

}  // namespace tessera::mesh
