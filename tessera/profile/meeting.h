// SPDX-License-Identifier: Apache-2.0
// Threads of one process that wait for each other. Private to this room.
#pragma once

#include <atomic>
#include <barrier>
#include <cstdint>

namespace tessera::profile {

/// The ranks of a host, which are threads. A rank that fails must leave.
class Meeting {
 public:
  explicit Meeting(int64_t ranks) : barrier_(ranks, Agree{this}) {}

  /// Waits for all ranks. The largest number of them, at least 0.
  double largest(double mine) {
    double seen = largest_;
    while (seen < mine && !largest_.compare_exchange_weak(seen, mine)) {
    }
    barrier_.arrive_and_wait();
    return agreed_;
  }
  void wait() { largest(0); }
  void leave() { barrier_.arrive_and_drop(); }

 private:
  /// Runs once, when all have arrived and before any goes on.
  struct Agree {
    Meeting* meeting;
    void operator()() noexcept { meeting->agreed_ = meeting->largest_.exchange(0); }
  };
  std::atomic<double> largest_ = 0;
  double agreed_ = 0;
  std::barrier<Agree> barrier_;
};

}  // namespace tessera::profile
