// SPDX-License-Identifier: Apache-2.0
// Chooses between several ways to compute the same result by measuring them once. Knows nothing of CUDA: the
// caller proposes the candidates and measures one run.
#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

namespace tessera::cuda {

enum class Timing {
  kNow,    // candidates may be run and measured
  kLater,  // not in this call: a CUDA graph is being captured
  kNever,  // switched off: the first candidate is always used
};

/// Index of the fastest of `count` candidates; none where no candidate runs. `seconds(index)` runs candidate
/// `index` and returns its duration as std::optional<double>, none where it fails; it is called up to twice
/// for a candidate. Candidate 0 is replaced only by one that is at least 3 % faster: smaller differences are
/// noise, and would make runs choose differently for nothing.
template <typename Seconds>
std::optional<size_t> fastest_of(size_t count, const Seconds& seconds) {
  constexpr double kNearBest = 1.25, kClearlyFaster = 0.97;
  std::vector<std::optional<double>> best(count);
  for (size_t i = 0; i < count; ++i) best[i] = seconds(i);
  const auto least = [&] {
    std::optional<size_t> index;
    for (size_t i = 0; i < count; ++i) {
      if (best[i] && (!index || *best[i] < *best[*index])) index = i;
    }
    return index;
  };
  const std::optional<size_t> first_round = least();
  if (!first_round) return std::nullopt;
  // The GPU's clock may have risen since the first candidates ran: those near the best run once more.
  const double limit = kNearBest * *best[*first_round];
  for (size_t i = 0; i < count; ++i) {
    if (!best[i] || *best[i] > limit) continue;
    if (const std::optional<double> again = seconds(i)) best[i] = std::min(*best[i], *again);
  }
  const size_t fastest = *least();
  return best[0] && *best[fastest] > kClearlyFaster * *best[0] ? 0 : fastest;
}

/// Remembers one choice for each key. Safe from any thread. Two threads that ask for a new key at the same
/// time both measure, and both use the choice that was stored first: no lock is held while candidates run,
/// since they may have to wait for work of other threads.
template <typename Key, typename Choice>
class FastestChoices {
 public:
  /// The choice for `key`. Where it is not known yet: `propose()` returns the candidates as a std::vector of
  /// at least one, the preferred first; `seconds(candidate)` is as in fastest_of. A first candidate that was
  /// returned because of Timing::kLater, or because no candidate could be measured, is not remembered.
  template <typename Propose, typename Seconds>
  Choice choose(const Key& key, Timing timing, const Propose& propose, const Seconds& seconds) {
    {
      const std::lock_guard lock(mutex_);
      if (const auto found = choices_.find(key); found != choices_.end()) return found->second;
    }
    const std::vector<Choice> candidates = propose();
    size_t chosen = 0;
    if (candidates.size() > 1 && timing != Timing::kNever) {
      if (timing == Timing::kLater) return candidates.front();
      const auto fastest = fastest_of(candidates.size(), [&](size_t i) { return seconds(candidates[i]); });
      if (!fastest) return candidates.front();
      chosen = *fastest;
    }
    const std::lock_guard lock(mutex_);
    return choices_.emplace(key, candidates[chosen]).first->second;
  }

 private:
  std::mutex mutex_;
  std::map<Key, Choice> choices_;
};

}  // namespace tessera::cuda
