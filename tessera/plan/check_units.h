// SPDX-License-Identifier: Apache-2.0
// Does a plan fit its model? Private to this room.
#pragma once

#include "tessera/plan/plan.h"

namespace tessera::plan {

/// Errors: UserError of `function` ("plan.predict_memory") when the plan's units are not the model's, or the
/// plan has pipeline stages or tensor parallelism, whose costs are not predicted.
void check_units(const char* function, const arch::ModelConfig& config, const Plan& plan);

}  // namespace tessera::plan
