// SPDX-License-Identifier: Apache-2.0
// How much the ranks of a host slow each other's passes.
#pragma once

#include "tessera/profile/pass_times.h"

namespace tessera::profile {

/// Factor of at least 1 by which passes take longer while all ranks of the host compute than while the others
/// are idle: planner::Profile::busy_ranks_slowdown. Micro-batches of the smallest and of the largest batch
/// in the model of few blocks; the median of the rounds. Up to four ranks are also measured alone, one after
/// another. 1 for one rank. Ranks are threads of this process, on a CPU, on their own cores.
double measure_busy_ranks_slowdown(const PassSettings& settings);

}  // namespace tessera::profile
