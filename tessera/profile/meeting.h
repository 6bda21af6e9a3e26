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

/// A rank's part in a meeting, until it ends: where it fails the others go on, and its exception is rethrown
/// when they have ended (run_on_threads).
class Attendance {
 public:
  explicit Attendance(Meeting& meeting) : meeting_(meeting) {}
  ~Attendance() { meeting_.leave(); }
  Attendance(const Attendance&) = delete;
  Attendance& operator=(const Attendance&) = delete;

 private:
  Meeting& meeting_;
};

}  // namespace tessera::profile
