// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/step_time.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/plan/check_units.h"
#include "tessera/plan/traffic.h"
#include "tessera/planner/stage_program.h"
#include "tessera/planner/step_events.h"

namespace tessera::planner {
namespace {

std::vector<std::vector<plan::Action>> actions_of(const StepQuestion& question) {
  if (question.plan.stages > 1) return plan::schedules_of(plan::shape_of(question.plan));
  std::vector<plan::Action> actions;
  for (int64_t i = 0; i < question.accumulation; ++i) {
    actions.push_back({plan::Direction::kForward, i});
    actions.push_back({plan::Direction::kBackward, i});
  }
  return {actions};
}

StepCosts costs_of(const ProfileTables& tables, const StepQuestion& question) {
  const Profile& profile = tables.profile;
  const int64_t of_host = ranks_of_host(profile, question.ranks_of_host);
  return {.tables = tables,
          .question = question,
          .messages = plan::stage_messages(profile.model, question.plan, question.inputs),
          .actions = actions_of(question),
          .micro_batches = question.plan.stages > 1 ? question.plan.micro_batches : question.accumulation,
          .links = LinkTable(profile, question.plan, of_host, question.shared_memory)};
}

int64_t most_in_flight(const std::vector<plan::Action>& actions) {
  int64_t now = 0, most = 0;
  for (const plan::Action& action : actions) {
    now += action.direction == plan::Direction::kForward ? 1 : -1;
    most = std::max(most, now);
  }
  return most;
}

/// Adds what the simulation leaves out: the end of the step, and data that come more slowly than the step
/// goes.
void add_rest(const StepCosts& costs, StepTime& time) {
  const double rest = costs.profile().step_seconds;
  const double loaded = costs.profile().data_seconds * static_cast<double>(costs.question.batch) *
                        static_cast<double>(costs.micro_batches);
  const double data = std::max(loaded - time.seconds - rest, 0.0);
  time.seconds += rest + data;
  for (StageTime& stage : time.stages) {
    stage.parts.rest = rest;
    stage.parts.data = data;
  }
}

}  // namespace

double StepParts::total() const {
  return compute + slowdown + exchange + gathers + reductions + messages + bubble + accumulation + optimizer +
         data + rest;
}

StepTime predict_step(const Profile& profile, const StepQuestion& question) {
  return predict_step(ProfileTables(profile), question);
}

StepTime predict_step(const ProfileTables& tables, const StepQuestion& question) {
  plan::check(question.plan, "the plan");
  plan::check_units("planner.predict_step", tables.profile.model, question.plan);
  TESSERA_CHECK(question.batch >= 1 && question.accumulation >= 1, question.batch, question.accumulation);
  StepCosts costs = costs_of(tables, question);
  std::vector<StageProgram> programs;
  for (int64_t stage = 0; stage < question.plan.stages; ++stage)
    programs.push_back(stage_program(costs, stage));
  std::vector<StageRecord> records = run_programs(costs, programs);
  StepTime time;
  time.assumptions = costs.links.assumptions();
  for (size_t i = 0; i < records.size(); ++i) {
    StageRecord& record = records[i];
    time.stages.push_back(
        {.parts = record.parts,
         .hidden_exchange = programs[i].hidden_exchange,
         .hidden_gathers = std::max(record.gather_seconds - record.parts.gathers, 0.0),
         .hidden_reductions = std::max(record.reduce_seconds - record.parts.reductions, 0.0)});
    time.timing.stages.push_back(std::move(record.actions));
    time.timing.in_flight.push_back(most_in_flight(costs.actions[i]));
    time.events.insert(time.events.end(), record.events.begin(), record.events.end());
  }
  time.seconds = time.timing.makespan = records.front().parts.total();
  const auto least = std::ranges::min_element(
      time.stages, {}, [](const StageTime& stage) { return stage.parts.bubble + stage.parts.messages; });
  time.slowest = static_cast<size_t>(least - time.stages.begin());
  add_rest(costs, time);
  return time;
}

}  // namespace tessera::planner
