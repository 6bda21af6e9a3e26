// SPDX-License-Identifier: Apache-2.0
// How much longer the slowest of the ranks of a host computes than they do on average. Pure.
#pragma once

#include <vector>

#include "tessera/profile/unit_passes.h"

namespace tessera::profile {

/// Shares of the seconds that a rank computes. Ranks that compute the same at the same time take unequal
/// times: each loses so much in waiting where all meet behind every unit's pass, or behind a whole
/// micro-batch.
struct Lag {
  double unit = 0, micro_batch = 0;
};

/// `of_ranks`: for each rank the units of the same micro-batches, which all ranks began together. Means
/// over micro-batches; 0 for one rank or no micro-batches. Requires: as many micro-batches and units of each
/// rank.
Lag lag_of(const std::vector<std::vector<std::vector<UnitPass>>>& of_ranks);

}  // namespace tessera::profile
