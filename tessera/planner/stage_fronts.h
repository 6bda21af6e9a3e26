// SPDX-License-Identifier: Apache-2.0
// Memory and time of a stage over the layouts of its units. Private to this room.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "tessera/planner/front.h"
#include "tessera/planner/stage_bounds.h"

namespace tessera::planner {

/// Seconds that a unit adds.
using UnitSeconds = std::function<double(const UnitWork&, UnitPosition)>;

/// How units of a run that choose differently lie: those with one choice together, in the order of the
/// choices or against it; or each choice spread over the run.
enum class Order { kAsListed, kReversed, kSpread };

class StageFronts {
 public:
  /// Times are exact but for this relative tolerance.
  static constexpr double kTolerance = 2e-4;

  /// `keys`: by unit. `works`: by choice and key. `choices`: by key. `waiting`: when the stage
  /// needs most.
  StageFronts(const std::vector<size_t>& keys, const std::vector<std::vector<size_t>>& choices,
              const std::vector<std::vector<UnitWork>>& works, const Waiting& waiting, double memory_limit,
              UnitSeconds seconds);

  /// Of the units [begin, end). Times are seconds, memory bytes.
  const Front& of(size_t begin, size_t end);
  /// The choice of each of these units at a point of their front.
  std::vector<size_t> choices_at(size_t begin, size_t end, size_t point, Order order);

 private:
  /// Units that are alike, one after another.
  struct Run {
    size_t begin = 0, count = 0;
    UnitPosition place;
  };
  std::vector<Run> runs_of(size_t begin, size_t end) const;
  const std::vector<size_t>& choices(const Run& run) const { return choices_[keys_[run.begin]]; }
  const Front& of_run(const Run& run);

  const std::vector<size_t>& keys_;
  const std::vector<std::vector<size_t>>& choices_;
  const std::vector<std::vector<UnitWork>>& works_;
  Waiting waiting_;
  FrontOptions options_;
  UnitSeconds seconds_;
  std::map<std::pair<size_t, size_t>, std::vector<Front>> fronts_;  // of a run, by key and place, and count
  std::map<std::vector<std::pair<size_t, size_t>>, Front> sums_;    // by key and count of each run
};

}  // namespace tessera::planner
