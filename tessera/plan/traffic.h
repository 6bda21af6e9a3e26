// SPDX-License-Identifier: Apache-2.0
// What a step sends. Numbers only: no tensors.
#pragma once

#include <string>
#include <vector>

#include "tessera/plan/cost_inputs.h"
#include "tessera/plan/plan.h"
#include "tessera/plan/spans.h"

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

/// Messages of parameters and gradients of what is gathered and reduced at once: a unit of the plan, or where
/// tensor parallelism cuts it two entries, of its cut parameters and of the rest (rows_plan()). Bytes are
/// those that one rank sends in one message; 0 in a group of one rank.
struct UnitMessages {
  std::string name;  // "blocks.3", "blocks.3/rows"
  size_t index = 0;  // in Plan::units
  Level level = Level::kReplicate;
  bool trained = true;              // false: frozen, so it has no gradients
  Span shard = {}, replicate = {};  // the groups
  double gather = 0;                // all-gather of the parameters over the shard group
  double reduce = 0;                // reduce-scatter of the gradients over the shard group
  double replicas = 0;  // reduce-scatter over the replicate group, once a step; then an all-gather of as many
  double values = 0;    // parameters of the unit on this rank, padded
  double owned = 0;     // of them, those whose optimizer state is on this rank
};

/// Of the units of the rank's stage, in the order of the plan. Requires: the plan's units are the model's.
std::vector<UnitMessages> unit_messages(const arch::ModelConfig& config, const Plan& plan,
                                        const CostInputs& inputs, int64_t rank);

/// The same by stage. Where tensor parallelism gives the ranks of a stage unequal parts, every number is that
/// of the rank with most.
std::vector<std::vector<UnitMessages>> stage_messages(const arch::ModelConfig& config, const Plan& plan,
                                                      const CostInputs& inputs);

/// Bytes of activations in the forward and in the backward pass.
struct PassBytes {
  double forward = 0, backward = 0;
};

/// Bytes of activations that a rank sends to each other rank of its tensor group for one of its images, in
/// the model's unit at `index`, laid out as `unit` says. 0 for a unit that is not cut; backward is 0 for a
/// frozen unit.
PassBytes exchanged_by_pass(const arch::ModelConfig& config, const UnitPlan& unit, size_t index,
                            const CostInputs& inputs);

/// The sum of exchanged_by_pass() of a unit of the plan. Requires: the plan's units are the model's.
double exchanged_per_image(const arch::ModelConfig& config, const Plan& plan, size_t index,
                           const CostInputs& inputs);

/// Bytes for one image that pass between the virtual stage before `virtual_stage` and that one: activations
/// forward; their gradients backward, unless nothing before is trained. Requires: virtual_stage >= 1, and the
/// plan's units are the model's.
PassBytes passed_into(const arch::ModelConfig& config, const Plan& plan, int64_t virtual_stage,
                      const CostInputs& inputs);

/// Bytes of activations and gradients that a rank of a stage sends to its neighbours for one of its images.
/// Requires: as exchanged_per_image().
double passed_per_image(const arch::ModelConfig& config, const Plan& plan, int64_t stage,
                        const CostInputs& inputs);

}  // namespace tessera::plan
