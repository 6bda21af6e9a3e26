// SPDX-License-Identifier: Apache-2.0
#include "tessera/plan/traffic.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "tessera/plan/check_units.h"
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
      return {compute, reduce};
    case Level::kZero2:
      return {compute, as_made * micro_batches};
    case Level::kZero3:  // backward begins with the last unit, which forward has left gathered
      return {compute * micro_batches * (last ? 1 : 2), as_made * micro_batches};
  }
  return {};
}

}  // namespace

StepTraffic step_traffic(const arch::ModelConfig& config, const Plan& plan, const CostInputs& inputs,
                         int64_t accumulation) {
  check_units("plan.step_traffic", config, plan);
  std::map<std::string, double> trained;
  for (const auto& spec : arch::parameters(config)) {
    if (!spec.buffer) trained[spec.unit] += static_cast<double>(spec.numel());
  }
  StepTraffic traffic;
  for (const UnitPlan& unit : plan.units) {
    const StepTraffic each =
        over_shards(unit, &unit == &plan.units.back(), inputs, static_cast<double>(accumulation));
    const auto shards = static_cast<double>(shard_span(plan, unit).size),
               replicas = static_cast<double>(replicate_span(plan, unit).size);
    // Of a shard, padded, the part that one replica sums; a rank sends one to each other rank.
    const double part = std::ceil(trained[unit.name] / (shards * replicas)), shard = part * replicas;
    // Once a step the sums of the replicas' gradients are scattered and gathered, not the parameters.
    const double over_replicas = part * (replicas - 1) * static_cast<double>(inputs.reduce_bytes);
    traffic.gathered += shard * (shards - 1) * each.gathered + over_replicas;
    traffic.reduced += shard * (shards - 1) * each.reduced + over_replicas;
  }
  return traffic;
}

}  // namespace tessera::plan
