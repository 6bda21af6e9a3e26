// SPDX-License-Identifier: Apache-2.0
// What a step sends. Numbers only: no tensors.
#pragma once

#include "tessera/plan/cost_inputs.h"
#include "tessera/plan/plan.h"

namespace tessera::plan {

/// Bytes that each rank sends in one optimizer step: docs/sharding.md, "On the wire", and docs/parallel.md.
struct StepTraffic {
  double gathered = 0;   // by all-gathers of parameters and of sums of gradients
  double reduced = 0;    // by reduce-scatters of gradients
  double exchanged = 0;  // by all-gathers and reduce-scatters of activations (tensor parallelism)
  double passed = 0;     // activations and their gradients, to neighbouring stages (pipeline)
  double total() const { return gathered + reduced + exchanged + passed; }
};

/// The most of any rank, where stages or tensor parallelism give ranks unequal parts. `accumulation`:
/// micro-batches of a step. `batch`: images per rank and micro-batch. Without the few bytes of counters,
/// votes and sample numbers. Errors: UserError when the plan's units are not the model's.
StepTraffic step_traffic(const arch::ModelConfig& config, const Plan& plan, const CostInputs& inputs,
                         int64_t accumulation, int64_t batch);

/// Bytes of activations that a rank sends to each other rank of its tensor group for one of its images, once
/// forward and backward, in the unit at `index` of the plan. 0 for a unit that is not cut. Requires: the
/// plan's units are the model's.
double exchanged_per_image(const arch::ModelConfig& config, const Plan& plan, size_t index,
                           const CostInputs& inputs);

/// Bytes of activations and gradients that a rank of a stage sends to its neighbours for one of its images.
/// Requires: as exchanged_per_image().
double passed_per_image(const arch::ModelConfig& config, const Plan& plan, int64_t stage,
                        const CostInputs& inputs);

}  // namespace tessera::plan
