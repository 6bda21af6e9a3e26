// SPDX-License-Identifier: Apache-2.0
// Seconds of one unit's passes. Private to this room.
#pragma once

#include "tessera/planner/lookup.h"
#include "tessera/planner/step_time.h"

namespace tessera::planner {

/// Of one micro-batch. Messages of parameters and gradients are not of it.
struct UnitCost {
  double forward = 0, backward = 0;                    // computation
  double exchange_forward = 0, exchange_backward = 0;  // exchanges that computation waits for
  double hidden_forward = 0, hidden_backward = 0;      // the rest of the exchanges
};

/// Of the unit at `index` in the plan of `question`, which is in pipeline stage `stage`. Errors: as
/// predict_step().
UnitCost unit_cost(const ProfileTables& tables, const StepQuestion& question, LinkTable& links, int64_t stage,
                   size_t index);

/// Of what goes on beside computation: seconds that computing and a message take together if both begin at
/// once and each has its slowdown while both are under way.
double together(double compute, double message, const Profile& profile);

}  // namespace tessera::planner
