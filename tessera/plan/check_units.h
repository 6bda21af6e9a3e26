// SPDX-License-Identifier: Apache-2.0
// Does a plan fit its model? For the rooms plan and planner; not an installed header.
#pragma once

#include "tessera/plan/plan.h"

namespace tessera::plan {

/// Errors: UserError of `function` ("plan.read_plan") when the plan's units are not the model's, or tensor
/// parallelism cuts one that has nothing to cut.
void check_units(const char* function, const arch::ModelConfig& config, const Plan& plan);

}  // namespace tessera::plan
