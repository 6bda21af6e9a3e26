// SPDX-License-Identifier: Apache-2.0
// The line seconds = latency + bytes / bytes_per_second through measured messages. Pure.
#pragma once

#include "tessera/planner/profile.h"

namespace tessera::planner {

/// Sets latency, bytes_per_second and spread from samples: the line with the least sum of squared relative
/// deviations, and a latency of at least 0. Requires: at least one sample; bytes and seconds above 0.
void fit_line(LinkTimes* link);

}  // namespace tessera::planner
