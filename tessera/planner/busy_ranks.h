// SPDX-License-Identifier: Apache-2.0
// Ranks of a host slow each other's passes: they share caches, memory and power, or even cores. A profile has
// passes while all ranks of a host compute. In a pipeline some stand still for part of a step. Private to
// this room.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "tessera/planner/profile.h"

namespace tessera::planner {

/// Equal pipeline stages whose ranks follow each other.
struct StageRanks {
  int64_t stages = 1;
  int64_t ranks = 1;          // of a stage
  int64_t ranks_of_host = 1;  // ranks h * ranks_of_host and the following are on host h
};

/// The first rank of each stage, which stands for the others. Those of its own stage compute when it does.
class BusyRanks {
 public:
  BusyRanks(const Profile& profile, const StageRanks& of);
  /// Does the time of a pass depend on which stages compute?
  bool matters() const { return slowdown_ > 1; }
  /// Share of their measured seconds that passes of `stage` take while the stages s with busy[s] compute: 1
  /// with as many busy ranks on its host as when they were measured, 1 / busy_ranks_slowdown alone, and in
  /// proportion between.
  double share(size_t stage, const std::vector<bool>& busy) const;
  /// The least share of any stage: no other stage computes.
  double least_share() const;

 private:
  double share_beside(double ranks) const;

  double slowdown_ = 1, measured_beside_ = 1;
  struct Host {
    double own = 0;                                 // other ranks of the stage on the host
    std::vector<std::pair<size_t, double>> others;  // stages with ranks on it, and how many
  };
  std::vector<Host> hosts_;  // by stage
};

}  // namespace tessera::planner
