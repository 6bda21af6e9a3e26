// SPDX-License-Identifier: Apache-2.0
#include "tessera/plan/traffic.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "tessera/plan/check_units.h"

namespace tessera::plan {
namespace {

/// Bytes a number times how often it travels in a step.
StepTraffic per_number(const UnitPlan& unit, bool last, const CostInputs& inputs, double micro_batches) {
  const auto compute = static_cast<double>(inputs.compute_bytes);
  const auto reduce = static_cast<double>(inputs.reduce_bytes);
  const double straight = std::min(compute, reduce);  // gradients that leave as backward made them
  switch (unit.level) {
    case Level::kReplicate:
      return {reduce, reduce};  // the sums of the gradients are gathered, not the parameters
    case Level::kZero1:
      return {compute, reduce};
    case Level::kZero2:
      return {compute, straight * micro_batches};
    case Level::kZero3:  // backward begins with the last unit, which forward has left gathered
      return {compute * micro_batches * (last ? 1 : 2), straight * micro_batches};
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
  const auto world = static_cast<double>(plan.world);
  StepTraffic traffic;
  for (const UnitPlan& unit : plan.units) {
    const StepTraffic each =
        per_number(unit, &unit == &plan.units.back(), inputs, static_cast<double>(accumulation));
    const double sent =
        std::ceil(trained[unit.name] / world) * (world - 1);  // a padded slice to each other rank
    traffic.gathered += sent * each.gathered;
    traffic.reduced += sent * each.reduced;
  }
  return traffic;
}

}  // namespace tessera::plan
