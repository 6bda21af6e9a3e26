// SPDX-License-Identifier: Apache-2.0
// How many workers a loader has, and where they run. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::data {

/// Of the cores of one host, shared by `local_world` ranks in equal parts: those of `local_rank`'s part that
/// its `threads` computing threads leave. Empty where they leave none.
std::vector<int> spare_cores(const std::vector<int>& allowed, int64_t local_rank, int64_t local_world,
                             int64_t threads);

/// One rank among those of its host.
struct RankOnHost {
  int64_t local_rank = 0, local_world = 1;
  int64_t threads = 1;       // that compute
  int64_t cores = 1;         // a rank's part of what the host, or a limit on time, gives to all of them
  int64_t cores_of_all = 1;  // that
};

struct Workers {
  int64_t count = 0;
  std::vector<int> cores = {};  // of their own; empty: any
  std::vector<std::string> warnings = {};
};

/// `wanted` workers; -1: as many as there are cores that the computing threads leave, at least one. They stay
/// on those cores where there are enough; a limit on time (more cores `allowed` than cores_of_all) leaves the
/// choice to the kernel. Warns where threads or workers share cores.
Workers choose_workers(int64_t wanted, const RankOnHost& rank, const std::vector<int>& allowed);

}  // namespace tessera::data
