// SPDX-License-Identifier: Apache-2.0
// What a step sends. Numbers only: no tensors.
#pragma once

#include "tessera/plan/cost_inputs.h"
#include "tessera/plan/plan.h"

namespace tessera::plan {

/// Bytes that each rank sends in one optimizer step: docs/sharding.md, "On the wire".
struct StepTraffic {
  double gathered = 0;  // by all-gathers
  double reduced = 0;   // by reduce-scatters
  double total() const { return gathered + reduced; }
};

/// `accumulation`: micro-batches of a step. Without the few bytes of counters and votes. Errors: UserError
/// when the plan's units are not the model's.
StepTraffic step_traffic(const arch::ModelConfig& config, const Plan& plan, const CostInputs& inputs,
                         int64_t accumulation);

}  // namespace tessera::plan
