// SPDX-License-Identifier: Apache-2.0
// Time that does not pass while the process is stopped.
#pragma once

#include <algorithm>
#include <chrono>

namespace tessera {

/// The time for which this process has run since this object was made: while the process is stopped (SIGSTOP,
/// `scontrol suspend`), kLongestGap passes at most. To be asked more often than that. One thread.
class RunningTime {
 public:
  using Duration = std::chrono::steady_clock::duration;
  static constexpr std::chrono::milliseconds kLongestGap{2000};

  Duration elapsed() {
    const auto now = std::chrono::steady_clock::now();
    elapsed_ += std::min<Duration>(now - asked_, kLongestGap);
    asked_ = now;
    return elapsed_;
  }

 private:
  std::chrono::steady_clock::time_point asked_ = std::chrono::steady_clock::now();
  Duration elapsed_{};
};

}  // namespace tessera
