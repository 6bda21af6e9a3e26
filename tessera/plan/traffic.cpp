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

/// Bytes per value of the shard, times how often it travels in a step between the ranks of a shard group.
/// `gathers`: of a zero3 unit.
StepTraffic over_shards(const UnitPlan& unit, double gathers, const CostInputs& inputs,
                        double micro_batches) {
  const auto compute = static_cast<double>(inputs.compute_bytes);
  const auto reduce = static_cast<double>(inputs.reduce_bytes);
  const double as_made = std::min(compute, reduce);  // gradients that travel in the dtype backward made
  switch (unit.level) {
    case Level::kReplicate:
      return {};
    case Level::kZero1:
      return {.gathered = compute, .reduced = reduce};
    case Level::kZero2:
      return {.gathered = compute, .reduced = as_made * micro_batches};
    case Level::kZero3:
      return {.gathered = compute * gathers, .reduced = as_made * micro_batches};
  }
  return {};
}

/// What is left of it where no backward pass comes: every forward pass gathers, and nothing is reduced.
StepTraffic of_frozen(const UnitPlan& unit, const StepTraffic& trained, const CostInputs& inputs,
                      double micro_batches) {
  if (unit.level != Level::kZero3) return {.gathered = trained.gathered};
  return {.gathered = static_cast<double>(inputs.compute_bytes) * micro_batches};
}

/// Of one rank: parameters and gradients.
StepTraffic traffic_of_rank(const std::vector<SizedUnit>& units, const Plan& plan, const CostInputs& inputs,
                            double micro_batches) {
  StepTraffic traffic;
  for (const SizedUnit& unit : units) {
    const int64_t stage = virtual_stage_of(plan, unit.index);
    // Of a segment's two units the one without its cut layers is gathered with them.
    const bool ends_part = unit.index + 1 == units_of_virtual_stage(plan, stage).second;
    StepTraffic each =
        over_shards(unit.plan, gathers_of(plan, stage, ends_part, micro_batches), inputs, micro_batches);
    const bool frozen = static_cast<int64_t>(unit.index) < inputs.frozen_units;
    if (frozen) each = of_frozen(unit.plan, each, inputs, micro_batches);
    const auto shards = static_cast<double>(shard_span(plan, unit.plan).size),
               replicas = static_cast<double>(replicate_span(plan, unit.plan).size);
    // Of a shard, padded, the part that one replica sums; a rank sends one to each other rank.
    const double part = std::ceil(unit.size.parameters / (shards * replicas)), shard = part * replicas;
    // Once a step the sums of the replicas' gradients are scattered and gathered, not the parameters.
    const double over_replicas =
        frozen ? 0 : part * (replicas - 1) * static_cast<double>(inputs.reduce_bytes);
    traffic.gathered += shard * (shards - 1) * each.gathered + over_replicas;
    traffic.reduced += shard * (shards - 1) * each.reduced + over_replicas;
  }
  return traffic;
}

}  // namespace

double exchanged_per_image(const arch::ModelConfig& config, const Plan& plan, size_t index,
                           const CostInputs& inputs) {
  const UnitPlan& unit = plan.units.at(index);
  if (!unit.is_cut()) return 0;
  const auto compute_bytes = static_cast<double>(inputs.compute_bytes);
  const arch::Exchanges values = arch::exchanges(config, index);
  if (static_cast<int64_t>(index) < inputs.frozen_units) return values.forward * compute_bytes;
  double sent = 2 * values.forward;  // and backward
  switch (unit.recompute) {
    case Recompute::kNone:
      sent += unit.keep_gathered ? 0 : values.inputs;
      break;
    case Recompute::kAll:  // backward uses the inputs that were gathered for this
      sent += values.again;
      break;
    case Recompute::kKeepSums:
      sent += values.again_with_sums;
      break;
  }
  return sent * compute_bytes;
}

double passed_per_image(const arch::ModelConfig& config, const Plan& plan, int64_t stage,
                        const CostInputs& inputs) {
  if (plan.stages == 1) return 0;
  const arch::Activations model = arch::activations(config, static_cast<double>(inputs.compute_bytes));
  double bytes = 0;
  for (int64_t index = stage; index < plan.stages * plan.virtual_stages; index += plan.stages) {
    const auto [begin, end] = units_of_virtual_stage(plan, index);
    // The gradient of what it reads, if something before is trained; and what the next stage reads.
    if (static_cast<int64_t>(begin) > inputs.frozen_units) bytes += model.units[begin].input;
    if (end < plan.units.size()) bytes += model.units[end].input;
  }
  return bytes;
}

StepTraffic step_traffic(const arch::ModelConfig& config, const Plan& plan, const CostInputs& inputs,
                         int64_t accumulation, int64_t batch) {
  check_units("plan.step_traffic", config, plan);
  const auto micro_batches = static_cast<double>(accumulation);
  const double images = static_cast<double>(batch) * micro_batches;
  StepTraffic most;
  for (const int64_t rank : distinct_ranks(plan)) {
    StepTraffic one = traffic_of_rank(sized_units(config, plan, rank), plan, inputs, micro_batches);
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
