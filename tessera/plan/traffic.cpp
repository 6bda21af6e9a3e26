// SPDX-License-Identifier: Apache-2.0
#include "tessera/plan/traffic.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "tessera/plan/check_units.h"
#include "tessera/plan/schedule.h"
#include "tessera/plan/sized_units.h"
#include "tessera/plan/spans.h"

namespace tessera::plan {
namespace {

/// How often a zero3 unit is gathered in a step. `ends_part`: it is the last of its part, which stays
/// gathered after a forward pass: its next pass is often the backward one.
double gathers_of(const Plan& plan, int64_t virtual_stage, bool ends_part, double micro_batches) {
  if (!ends_part) return 2 * micro_batches;
  if (plan.stages == 1) return micro_batches;
  const int64_t part = virtual_stage / plan.stages;
  double gathers = 0;
  bool is_there = false;
  for (const Action& action : schedule_of(shape_of(plan), virtual_stage % plan.stages)) {
    if (action.part != part) continue;
    gathers += is_there ? 0 : 1;
    is_there = action.direction == Direction::kForward;
  }
  return gathers;
}

/// How often a unit's messages travel between the ranks of its shard group in a step.
struct Times {
  double gathers = 0, reductions = 0;
};

/// `gathers`: of a zero3 unit that is trained. A frozen one is gathered in every forward pass.
Times times_of(const UnitMessages& unit, double gathers, double micro_batches) {
  switch (unit.level) {
    case Level::kReplicate:
      return {};
    case Level::kZero1:
      return {1, unit.trained ? 1.0 : 0.0};
    case Level::kZero2:
      return {1, unit.trained ? micro_batches : 0.0};
    case Level::kZero3:
      return unit.trained ? Times{gathers, micro_batches} : Times{micro_batches, 0};
  }
  return {};
}

/// Of one rank: parameters and gradients.
StepTraffic traffic_of_rank(const std::vector<UnitMessages>& units, const Plan& plan, double micro_batches) {
  StepTraffic traffic;
  for (const UnitMessages& unit : units) {
    const int64_t stage = virtual_stage_of(plan, unit.index);
    // Of a segment's two units the one without its cut layers is gathered with them.
    const bool ends_part = unit.index + 1 == units_of_virtual_stage(plan, stage).second;
    const Times times = times_of(unit, gathers_of(plan, stage, ends_part, micro_batches), micro_batches);
    // Once a step the sums of the replicas' gradients are scattered and gathered, not the parameters.
    traffic.gathered += unit.gather * times.gathers + unit.replicas;
    traffic.reduced += unit.reduce * times.reductions + unit.replicas;
  }
  return traffic;
}

}  // namespace

namespace {

std::vector<UnitMessages> messages_of(const ModelSpecs& specs, const Plan& plan, const CostInputs& inputs,
                                      int64_t rank) {
  const auto compute = static_cast<double>(inputs.compute_bytes);
  const auto reduce = static_cast<double>(inputs.reduce_bytes);
  const double as_made = std::min(compute, reduce);  // gradients that travel in the dtype backward made
  std::vector<UnitMessages> all;
  for (const SizedUnit& unit : sized_units(specs, plan, rank)) {
    UnitMessages one{.name = unit.plan.name, .index = unit.index, .level = unit.plan.level};
    one.trained = static_cast<int64_t>(unit.index) >= inputs.frozen_units;
    one.shard = shard_span(plan, unit.plan);
    one.replicate = replicate_span(plan, unit.plan);
    const auto shards = static_cast<double>(one.shard.size),
               replicas = static_cast<double>(one.replicate.size);
    // Of a shard, padded, the part that one replica sums; a rank sends one to each other rank.
    const double part = std::ceil(unit.size.parameters / (shards * replicas));
    one.owned = part * replicas;
    one.values = one.owned * shards;
    one.gather = one.owned * (shards - 1) * compute;
    if (one.trained) {
      one.reduce = one.owned * (shards - 1) * (one.level >= Level::kZero2 ? as_made : reduce);
      one.replicas = part * (replicas - 1) * reduce;
    }
    all.push_back(std::move(one));
  }
  return all;
}

}  // namespace

std::vector<UnitMessages> unit_messages(const arch::ModelConfig& config, const Plan& plan,
                                        const CostInputs& inputs, int64_t rank) {
  return messages_of(ModelSpecs(config), plan, inputs, rank);
}

std::vector<std::vector<UnitMessages>> stage_messages(const arch::ModelConfig& config, const Plan& plan,
                                                      const CostInputs& inputs) {
  const ModelSpecs specs(config);
  std::vector<std::vector<UnitMessages>> stages(static_cast<size_t>(plan.stages));
  for (const int64_t rank : distinct_ranks(config, plan)) {
    const std::vector<UnitMessages> of_rank = messages_of(specs, plan, inputs, rank);
    std::vector<UnitMessages>& most = stages[static_cast<size_t>(stage_of(plan, rank))];
    if (most.empty()) most = of_rank;
    for (size_t i = 0; i < of_rank.size(); ++i) {
      for (double UnitMessages::*value :
           {&UnitMessages::gather, &UnitMessages::reduce, &UnitMessages::replicas, &UnitMessages::values,
            &UnitMessages::owned})
        most[i].*value = std::max(most[i].*value, of_rank[i].*value);
    }
  }
  return stages;
}

PassBytes exchanged_by_pass(const arch::ModelConfig& config, const UnitPlan& unit, size_t index,
                            const CostInputs& inputs) {
  if (!unit.is_cut()) return {};
  const auto compute_bytes = static_cast<double>(inputs.compute_bytes);
  const arch::Exchanges values = arch::exchanges(config, index);
  PassBytes sent{.forward = values.forward * compute_bytes};
  if (static_cast<int64_t>(index) < inputs.frozen_units) return sent;
  double backward = values.forward;
  switch (unit.recompute) {
    case Recompute::kNone:
      backward += unit.keep_gathered ? 0 : values.inputs;
      break;
    case Recompute::kAll:  // backward uses the inputs that were gathered for this
      backward += values.again;
      break;
    case Recompute::kKeepSums:
      backward += values.again_with_sums;
      break;
  }
  sent.backward = backward * compute_bytes;
  return sent;
}

double exchanged_per_image(const arch::ModelConfig& config, const Plan& plan, size_t index,
                           const CostInputs& inputs) {
  const PassBytes sent = exchanged_by_pass(config, plan.units.at(index), index, inputs);
  return sent.forward + sent.backward;
}

PassBytes passed_into(const arch::ModelConfig& config, const Plan& plan, int64_t virtual_stage,
                      const CostInputs& inputs) {
  const size_t first = units_of_virtual_stage(plan, virtual_stage).first;
  const double input =
      arch::activations(config, static_cast<double>(inputs.compute_bytes)).units.at(first).input;
  return {input, static_cast<int64_t>(first) > inputs.frozen_units ? input : 0};
}

double passed_per_image(const arch::ModelConfig& config, const Plan& plan, int64_t stage,
                        const CostInputs& inputs) {
  if (plan.stages == 1) return 0;
  double bytes = 0;
  const int64_t all = plan.stages * plan.virtual_stages;
  for (int64_t index = stage; index < all; index += plan.stages) {
    if (index > 0) bytes += passed_into(config, plan, index, inputs).backward;
    if (index + 1 < all) bytes += passed_into(config, plan, index + 1, inputs).forward;
  }
  return bytes;
}

StepTraffic step_traffic(const arch::ModelConfig& config, const Plan& plan, const CostInputs& inputs,
                         int64_t accumulation, int64_t batch) {
  check_units("plan.step_traffic", config, plan);
  const auto micro_batches = static_cast<double>(accumulation);
  const double images = static_cast<double>(batch) * micro_batches;
  StepTraffic most;
  for (const int64_t rank : distinct_ranks(config, plan)) {
    StepTraffic one = traffic_of_rank(unit_messages(config, plan, inputs, rank), plan, micro_batches);
    const int64_t stage = stage_of(plan, rank);
    for (size_t i = 0; i < plan.units.size(); ++i) {
      if (virtual_stage_of(plan, i) % plan.stages != stage) continue;
      const auto peers = static_cast<double>(plan.units[i].layout.tensor - 1);
      one.exchanged += exchanged_per_image(config, plan, i, inputs) * peers * images;
    }
    one.passed = passed_per_image(config, plan, stage, inputs) * images;
    if (one.total() > most.total()) most = one;
  }
  return most;
}

}  // namespace tessera::plan
