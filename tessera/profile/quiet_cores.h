// SPDX-License-Identifier: Apache-2.0
// Measurements while nothing else slows the cores. On a shared machine the other hardware thread of a core
// may belong to somebody else, whose programs neither the load nor the steal time of this machine shows.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

#include "tessera/mesh/group.h"

namespace tessera::profile {

/// CPU seconds of a fixed piece of arithmetic on values in first-level caches, about one millisecond: those
/// of the slowest of the calling thread's intra-op threads. A program on the other hardware thread of a core
/// makes it 1.5 to 2 times as long; waiting for a core does not count.
double arithmetic_seconds();

/// Of ranks that measure the same together. One thread.
class QuietCores {
 public:
  /// The largest of all ranks' numbers, the same on every rank. Collective.
  using Largest = std::function<double(double)>;

  /// `patience`: what is waited and measured again takes at most this many times as long as what counts and
  /// kFreeSeconds together; 0: nothing is looked at, and nothing counts as slowed. `arithmetic`: for tests.
  QuietCores(double patience, Largest largest, std::function<double()> arithmetic = arithmetic_seconds);

  /// Records for were_slowed() whether a core of any rank is slowed now. Does not wait. Collective.
  void look();
  /// Was a core of a rank slowed at look(), or is it now? Collective.
  bool were_slowed();

  /// What `work` returns, which measures once: waits first, and calls it again where a core was slowed. What
  /// is slowed when patience ends counts as well. Collective.
  template <class Work>
  auto measured(Work&& work) {
    while (true) {
      wait();
      auto found = work();
      if (!should_repeat()) return found;
    }
  }

  /// Of what measured() returned.
  int64_t measurements() const { return measurements_; }
  int64_t slowed() const { return slowed_; }

  static constexpr double kFreeSeconds = 2;
  /// Above this multiple of usual_seconds() a core is slowed.
  static constexpr double kSlowed = 1.15;

 private:
  /// Until no core of a rank is slowed. Collective.
  void wait();
  /// Of arithmetic that nothing slowed: where ranks share cores with each other, hardly any is as short as
  /// the shortest.
  double usual_seconds() const;
  bool may_take(double seconds) const { return extra_ + seconds <= patience_ * (kFreeSeconds + useful_); }
  enum Slowed { kNo, kYes, kYesAndThereIsTime };
  /// `seconds`: that would be lost. Collective.
  Slowed is_slowed(double seconds);
  bool should_repeat();

  double patience_;
  Largest largest_;
  std::function<double()> arithmetic_;
  std::vector<double> seen_;       // sorted
  double extra_ = 0, useful_ = 0;  // seconds
  bool began_slowed_ = false;
  std::chrono::steady_clock::time_point began_;
  int64_t measurements_ = 0, slowed_ = 0;
};

/// A function that finds the largest number over the ranks of `ranks`. Requires: all of them run. Ranks that
/// are only pretended (Mesh::pretend) have no numbers.
QuietCores::Largest largest_of(mesh::Group& ranks);

}  // namespace tessera::profile
