// SPDX-License-Identifier: Apache-2.0
#include "tessera/plan/check_units.h"

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/plan/sized_units.h"

namespace tessera::plan {

void check_units(const char* function, const arch::ModelConfig& config, const Plan& plan) {
  const Plan expected = uniform_plan(config, plan.world, Level::kZero3, false, plan.prefetch);
  if (plan.units.size() != expected.units.size()) {
    user_error({.where = function,
                .problem = concat("the plan has ", plan.units.size(), " units"),
                .expected = concat("the ", expected.units.size(), " units of the model")});
  }
  for (size_t i = 0; i < plan.units.size(); ++i) {
    if (plan.units[i].name == expected.units[i].name) continue;
    user_error({.where = function,
                .problem = concat("unit ", i, " of the plan is \"", escape(plan.units[i].name), "\""),
                .expected = concat("\"", expected.units[i].name, "\"")});
  }
  const std::set<std::string> cuttable = cuttable_units(config);
  for (const UnitPlan& unit : plan.units) {
    if (!unit.is_cut() || cuttable.contains(unit.name)) continue;
    user_error({.where = function,
                .problem = concat("\"tensor\" of \"", escape(unit.name), "\" is ", unit.layout.tensor),
                .expected = "1: the unit has no layers that tensor parallelism cuts"});
  }
}

}  // namespace tessera::plan
