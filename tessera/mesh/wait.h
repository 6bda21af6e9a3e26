// SPDX-License-Identifier: Apache-2.0
// A wait for other ranks. Private to this room.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "tessera/base/running_time.h"
#include "tessera/mesh/connections.h"
#include "tessera/mesh/transport.h"

namespace tessera::mesh {

/// How far apart ranks of one start may come. A longer wait is spoken of, and ends when a stop is asked for:
/// a stop that comes while ranks are on their way takes effect in order, after the first step.
constexpr std::chrono::milliseconds kPatience{10'000};

/// How often a wait for an operation looks whether it is over.
constexpr std::chrono::milliseconds kBetweenLooks{1000};

/// What bounds the waits of one rendezvous.
struct WaitLimits {
  std::chrono::milliseconds limit;
  std::function<bool()> stop;  // may be empty; called from the waiting thread
  std::chrono::milliseconds patience = kPatience;
};

/// The wait for one operation of a transport. To be asked every second or more often. One thread.
class OperationWait {
 public:
  explicit OperationWait(const Patience& patience) : patience_(patience), limit_(patience.timeout) {}

  /// Is the time over without a sign that the other ranks advance?
  bool is_over();

 private:
  const Patience& patience_;
  RunningTime time_;
  RunningTime::Duration limit_;
  std::optional<int64_t> progress_;  // in the middle of the time
  bool hurries_ = false;             // an operation of the mesh has failed
};

/// Why a wait that lasts since `time` began must end; "": it may go on. `connections`: of the operation.
std::string reason_to_give_up(OperationWait& time, const Patience& patience, const Connections& connections);

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
