// SPDX-License-Identifier: Apache-2.0
#include "tessera/recipe/executable_plan.h"

#include <algorithm>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/plan/schedule.h"
#include "tessera/plan/step_events.h"

namespace tessera::recipe {
namespace {

[[noreturn]] void unsupported(const std::string& setting, const std::string& expected) {
  user_error({.where = "train.plan",
              .problem = concat("training does not support ", setting, " of the plan yet"),
              .expected = expected});
}

std::string of_unit(const char* key, const std::string& value, const plan::UnitPlan& unit) {
  return concat('"', key, "\" ", value, " of unit \"", escape(unit.name), '"');
}

/// The order of the collectives and messages of a step. Of larger plans the small ones of the same kind are
/// proof.
void check_step(const plan::Plan& plan) {
  constexpr int64_t kMostEvents = 100'000, kEventsOfAPass = 10;
  plan::StepLayers layers = plan::any_layers(plan);
  layers.micro_batches = 2;
  const int64_t passes = 2 * std::max(plan.micro_batches, layers.micro_batches);
  const int64_t units = static_cast<int64_t>(plan.units.size()) / plan.stages + 1;
  if (plan.world * units * passes * kEventsOfAPass > kMostEvents) return;
  std::vector<std::vector<plan::StepEvent>> ranks;
  for (int64_t rank = 0; rank < plan.world; ++rank) ranks.push_back(plan::step_events(plan, layers, rank));
  plan::check_events(ranks);
}

}  // namespace

void check_executable(const plan::Plan& plan) {
  if (plan.stages > 1) {
    constexpr int64_t kMostPasses = 1'000'000;  // of larger ones the small ones of the same kind are proof
    const plan::ScheduleShape shape = plan::shape_of(plan);
    if (shape.stages * shape.parts * shape.micro_batches <= kMostPasses)
      plan::check_schedule(shape, plan::schedules_of(shape));
  }
  // To be computed again, a unit needs an input with a gradient: the images have none.
  if (const plan::UnitPlan& first = plan.units.front(); first.recomputes())
    unsupported(of_unit("recompute", concat('"', to_string(first.recompute), '"'), first), "\"none\"");
  for (const plan::UnitPlan& unit : plan.units) {
    if (!unit.is_cut() && unit.keep_gathered)
      unsupported(of_unit("keep_gathered", "true with \"tensor\" 1", unit), "false");
    if (!unit.is_cut() && unit.recompute == plan::Recompute::kKeepSums)
      unsupported(of_unit("recompute", "\"keep_sums\" with \"tensor\" 1", unit), "\"none\" or \"all\"");
  }
  check_step(plan);
}

}  // namespace tessera::recipe
