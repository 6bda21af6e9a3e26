// SPDX-License-Identifier: Apache-2.0
// Ranks of a host slow each other's passes: they share caches, memory and power, or even cores. Passes of a
// profile were measured while all ranks of a host compute. In a pipeline some are idle for part of a step.
// Private to this room.
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

/// For the first rank of each stage. The other ranks of its stage compute when it does.
class BusyRanks {
 public:
  BusyRanks(const Profile& profile, const StageRanks& of);
  /// Does the time of a pass depend on which stages compute?
  bool matters() const { return slowdown_ > 1; }
  /// Share of their measured seconds that passes of `stage` take while the stages s with busy[s] compute.
  /// What ranks share (cores, memory bandwidth) is used up when all R measured ranks compute: of n ranks on
  /// the host each needs n / R of the measured seconds, but no less than a rank alone, 1 /
  /// busy_ranks_slowdown.
  double share(size_t stage, const std::vector<bool>& busy) const;
  /// The least share of any stage: no other stage computes.
  double least_share() const;

 private:
  double share_beside(double ranks) const;

  double slowdown_ = 1, measured_ranks_ = 1;
  struct Host {
    double own = 0;                                 // other ranks of the stage on the host
    std::vector<std::pair<size_t, double>> others;  // stages with ranks on it, and how many
  };
  std::vector<Host> hosts_;  // by stage
};

}  // namespace tessera::planner
