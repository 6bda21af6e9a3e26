// SPDX-License-Identifier: Apache-2.0
// How much layers that are cut compute beside their exchanges. Pure; safe from any thread.
#pragma once

#include <cstdint>
#include <map>

#include "tessera/planner/profile.h"
#include "tessera/recipe/recipe.h"

namespace tessera::profile {

/// By ranks of a tensor group: seconds that a rank computes in blocks for a byte that it sends in their
/// exchanges, forward and backward, without recompute. Of the profile's blocks that are cut. `value_bytes`:
/// of a value in the compute dtype.
std::map<int64_t, double> compute_per_exchanged_byte(const planner::Profile& profile,
                                                     const recipe::Recipe& recipe, int64_t value_bytes);

}  // namespace tessera::profile
