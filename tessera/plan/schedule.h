// SPDX-License-Identifier: Apache-2.0
// The order in which the stages of a pipeline run the forward and backward passes of a step's micro-batches:
// lists of actions, which the executor runs, the checker proves free of deadlock, and simulate() times.
// Pure; safe from any thread.
//
// check_schedule() looks at passes and the messages that they read. step_events.h has every collective and
// message of a step.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/plan/plan.h"

namespace tessera::plan {

enum class Direction { kForward, kBackward };

/// What a stage does next.
struct Action {
  Direction direction = Direction::kForward;
  int64_t micro_batch = 0;
  int64_t part = 0;  // which of the rank's virtual stages: virtual stage part * stages + stage of the plan
  bool operator==(const Action&) const = default;
};

/// "F3", "B0"; of a rank with several parts "F3.1".
std::string to_string(const Action& action, int64_t parts);
/// Reads such a text; nothing where it is none.
std::optional<Action> action_from_string(std::string_view text);

struct ScheduleShape {
  Schedule schedule = Schedule::k1F1B;
  int64_t stages = 1;
  int64_t parts = 1;  // virtual stages of a rank
  int64_t micro_batches = 1;
  /// k1F1B: forwards that every stage but the last runs earlier than it must. One hides the time of a
  /// message, at the price of one more micro-batch's activations.
  int64_t ahead = 0;
};

/// Of a plan. Requires: plan.micro_batches >= 1.
ScheduleShape shape_of(const Plan& plan);

/// The actions of one stage. GPipe: arXiv 1811.06965; 1F1B: PipeDream-Flush, arXiv 2006.09503; interleaved:
/// arXiv 2104.04473, where micro_batches is a multiple of stages.
std::vector<Action> schedule_of(const ScheduleShape& shape, int64_t stage);
/// Of all stages.
std::vector<std::vector<Action>> schedules_of(const ScheduleShape& shape);
/// Forward passes alone: an evaluation of so many batches.
std::vector<Action> forward_schedule(int64_t parts, int64_t batches);

/// Seconds of one pass of each virtual stage, in the model's order, and of a message to a neighbour.
struct PassCosts {
  std::vector<double> forward, backward;
  double message = 0;
};

/// What a schedule does in time.
struct Timing {
  struct Span {
    Action action;
    double begin = 0, end = 0;
  };
  std::vector<std::vector<Span>> stages;  // in the order of each stage's list
  double makespan = 0;
  std::vector<int64_t>
      in_flight;  // by stage: most passes whose backward is still to come, over all its parts
};

/// Runs the lists, one of each stage: an action begins when the stage has done those before it and its input
/// has come. Sends take no time of the sender. Errors: UserError as check_schedule().
Timing simulate(const ScheduleShape& shape, std::span<const std::vector<Action>> stages,
                const PassCosts& costs);

/// Errors: UserError that names what is wrong with the lists, one of each stage: a pass that is missing or
/// there twice, a backward pass before its forward pass, passes in another order than their messages come, or
/// stages that wait for each other for ever. `room`: messages that may be under way between two neighbours in
/// one direction before the sender waits; 0: any number.
void check_schedule(const ScheduleShape& shape, std::span<const std::vector<Action>> stages,
                    int64_t room = 0);

}  // namespace tessera::plan
