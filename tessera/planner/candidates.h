// SPDX-License-Identifier: Apache-2.0
// Simulates the plans that the search asks for and keeps the best. Private to this room.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/clock.h"
#include "tessera/planner/search_space.h"

namespace tessera::planner {

/// One plan of the space.
struct ProposedPlan {
  const Frame& frame;
  int64_t prefetch = 1;
  std::span<const int64_t> first_unit;       // of each virtual stage
  std::vector<const plan::UnitPlan*> units;  // without names
};

class Candidates {
 public:
  Candidates(const ProfileTables& tables, const SearchQuestion& question);

  /// A plan's memory by stage, and whether it fits. One that fits is simulated; it is kept if it is among the
  /// best.
  struct Outcome {
    std::vector<plan::Memory> memory;
    bool fits = false;
    double seconds_per_image = 0;  // if it fits
  };
  Outcome try_plan(const ProposedPlan& candidate);

  /// Seconds of an image with the best plan so far; infinity without one.
  double best() const;
  /// Plans of which the answer consists so far.
  size_t kept() const { return result_.best.size(); }
  /// Has so much of SearchQuestion::seconds passed?
  bool is_time_up(double share = 1) const;
  SearchResult take();
  void count_bound() { ++result_.bounded; }

 private:
  StepQuestion question_of(const ProposedPlan& candidate) const;
  void keep(FoundPlan plan);

  const ProfileTables& tables_;
  const SearchQuestion& question_;
  std::vector<std::string> names_;  // of units
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  SearchResult result_;
};

}  // namespace tessera::planner
