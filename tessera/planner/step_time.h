// SPDX-License-Identifier: Apache-2.0
// Predicts how long an optimizer step of a plan takes, from what was measured of a machine and a model
// (profile.h). The lists of actions that the executor runs are simulated, with one representative rank per
// pipeline stage. docs/planner.md lists formulas and what is not modelled. Pure; safe from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/plan/cost_inputs.h"
#include "tessera/plan/plan.h"
#include "tessera/plan/schedule.h"
#include "tessera/planner/profile.h"

namespace tessera::planner {

/// What is predicted besides the profile's model.
struct StepQuestion {
  plan::Plan plan;
  plan::CostInputs inputs = {};
  int64_t batch = 1;          // images per rank and micro-batch; where ranks differ, of the rank with most
  int64_t accumulation = 1;   // micro-batches of a step; a pipeline has Plan::micro_batches
  int64_t pieces = 1;         // of tensor-parallel exchanges that go on beside products; 1 over shared memory
  int64_t ranks_of_host = 0;  // 0: as many as the profile was measured with
  bool shared_memory = true;  // groups of one host use it, if it was measured
  bool record = false;        // fill StepTime::events
};

/// Seconds of a step on the representative rank of one stage. They add up to the step's time.
struct StepParts {
  double compute = 0;       // forward and backward passes, as long as they take alone
  double slowdown = 0;      // by which passes take longer because of messages beside them
  double exchange = 0;      // tensor-parallel exchanges that computation waits for
  double gathers = 0;       // all-gathers of parameters that it waits for
  double reductions = 0;    // sums of gradients that it waits for
  double messages = 0;      // of the pipeline, under way while the stage waits for them
  double bubble = 0;        // standing still while other stages compute
  double accumulation = 0;  // adding the gradients of micro-batches
  double optimizer = 0;
  double data = 0;  // waiting for the data loader
  double rest = 0;  // Profile::step_seconds
  double total() const;
};

/// One stage. Hidden: seconds of messages that passed beside computation.
struct StageTime {
  StepParts parts;
  double hidden_exchange = 0, hidden_gathers = 0, hidden_reductions = 0;
};

/// Something that lasted, for a trace.
struct StepEvent {
  int64_t stage = 0;
  std::string track;          // "compute", or the group whose messages it shows
  std::string name;           // "blocks.3"
  std::string category;       // "forward", "backward", "exchange", "gather", "reduce", "message", ...
  double begin = 0, end = 0;  // seconds from the beginning of the step
};

struct StepTime {
  double seconds = 0;
  std::vector<StageTime> stages;
  size_t slowest = 0;   // the stage that is idle the least
  plan::Timing timing;  // passes of each stage; begins with the optimizer's update
  std::vector<StepEvent> events;
  /// Measurements that stand for others: "all_gather of 64 adjacent ranks: measured with 2 ranks".
  std::vector<std::string> assumptions;
};

/// Errors: UserError that names the times or links that the profile lacks and how to measure them, when the
/// plan's units are not the model's, or when the plan's layout contradicts itself.
StepTime predict_step(const Profile& profile, const StepQuestion& question);

struct ProfileTables;
/// The same, for many plans of one profile (lookup.h).
StepTime predict_step(const ProfileTables& tables, const StepQuestion& question);

}  // namespace tessera::planner
