// SPDX-License-Identifier: Apache-2.0
#include "tessera/plan/traffic.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "tessera/plan/check_units.h"
#include "tessera/plan/sized_units.h"
#include "tessera/plan/spans.h"

namespace tessera::plan {
namespace {

/// Bytes per value of the shard, times how often it travels in a step between the ranks of a shard group.
StepTraffic over_shards(const UnitPlan& unit, bool last, const CostInputs& inputs, double micro_batches) {
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
    case Level::kZero3:  // backward begins with the last unit, which forward has left gathered
      return {.gathered = compute * micro_batches * (last ? 1 : 2), .reduced = as_made * micro_batches};
  }
  return {};
}

/// Of one rank: parameters and gradients.
StepTraffic traffic_of_rank(const std::vector<SizedUnit>& units, const Plan& plan, const CostInputs& inputs,
                            double micro_batches) {
  StepTraffic traffic;
  for (const SizedUnit& unit : units) {
    const StepTraffic each = over_shards(unit.plan, &unit == &units.back(), inputs, micro_batches);
    const auto shards = static_cast<double>(shard_span(plan, unit.plan).size),
               replicas = static_cast<double>(replicate_span(plan, unit.plan).size);
    // Of a shard, padded, the part that one replica sums; a rank sends one to each other rank.
    const double part = std::ceil(unit.size.parameters / (shards * replicas)), shard = part * replicas;
    // Once a step the sums of the replicas' gradients are scattered and gathered, not the parameters.
    const double over_replicas = part * (replicas - 1) * static_cast<double>(inputs.reduce_bytes);
    traffic.gathered += shard * (shards - 1) * each.gathered + over_replicas;
    traffic.reduced += shard * (shards - 1) * each.reduced + over_replicas;
  }
  return traffic;
}

}  // namespace

double exchanged_per_image(const arch::ModelConfig& config, const Plan& plan, size_t index,
                           int64_t compute_bytes) {
  const UnitPlan& unit = plan.units.at(index);
  if (!unit.is_cut()) return 0;
  const arch::Exchanges values = arch::exchanges(config, index);
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
  return sent * static_cast<double>(compute_bytes);
}

StepTraffic step_traffic(const arch::ModelConfig& config, const Plan& plan, const CostInputs& inputs,
                         int64_t accumulation, int64_t batch) {
  check_predictable("plan.step_traffic", config, plan);
  const auto micro_batches = static_cast<double>(accumulation);
  StepTraffic most;
  for (const int64_t rank : distinct_ranks(plan)) {
    const StepTraffic one = traffic_of_rank(sized_units(config, plan, rank), plan, inputs, micro_batches);
    if (one.total() > most.total()) most = one;
  }
  for (size_t i = 0; i < plan.units.size(); ++i) {
    const auto peers = static_cast<double>(plan.units[i].layout.tensor - 1);
    most.exchanged += exchanged_per_image(config, plan, i, inputs.compute_bytes) * peers *
                      static_cast<double>(batch) * micro_batches;
  }
  return most;
}

}  // namespace tessera::plan
