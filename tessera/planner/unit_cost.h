// SPDX-License-Identifier: Apache-2.0
// Seconds of one unit's passes. Private to this room.
#pragma once

#include "tessera/plan/traffic.h"
#include "tessera/planner/lookup.h"
#include "tessera/planner/step_time.h"

namespace tessera::planner {

/// Of one micro-batch. Messages of parameters and gradients are not of it.
struct UnitCost {
  double forward = 0, backward = 0;                    // computation
  double exchange_forward = 0, exchange_backward = 0;  // exchanges that computation waits for
  double hidden_forward = 0, hidden_backward = 0;      // the rest of the exchanges
  bool exchanges = false;  // samples, with the other ranks that hold the unit; then its seconds have the lag
};

/// Of the unit at `index` in the plan of `question`, which is in pipeline stage `stage`. Errors: as
/// predict_step().
UnitCost unit_cost(const ProfileTables& tables, const StepQuestion& question, LinkTable& links, int64_t stage,
                   size_t index);

/// Seconds that the gradients of a unit take once a backward pass has made them. Those of zero2 and zero3
/// travel as they are, up to their sum over the ranks, which is added to those before it. Others are
/// collected in fp32, unless nothing is to be added to them. `is_first`: of the step's micro-batches.
double accumulation_seconds(const Profile& profile, const plan::UnitMessages& unit, bool is_first,
                            int64_t micro_batches);

/// Of what goes on beside computation: seconds that computing and a message take together if both begin at
/// once and each has its slowdown while both are under way.
double together(double compute, double message, const Profile& profile);

}  // namespace tessera::planner
