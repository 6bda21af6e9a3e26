// SPDX-License-Identifier: Apache-2.0
// What every rank did in one traced step, read from trace.json (base/trace.h). Pure; safe from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/plan/schedule.h"

namespace tessera::monitor {

/// Seconds since the first rank began the step.
struct Interval {
  double begin = 0, end = 0;
  double seconds() const { return end - begin; }
};

/// A forward or backward pass of a micro-batch.
struct TimedPass {
  plan::Action action;
  Interval time;
};

/// One rank. All lists rise in time.
struct RankTimeline {
  std::vector<TimedPass> passes;
  std::vector<Interval> data, optimizer;
  std::vector<Interval> exchanges;       // gathers and reductions from start to end; they may overlap
  std::vector<Interval> exchange_waits;  // the training thread waits for them
  std::vector<Interval> stage_waits;     // it waits for messages of other pipeline stages
};

struct StepTimeline {
  int64_t step = 0;
  double seconds = 0;  // from the first rank's begin to the last rank's end
  std::vector<RankTimeline> ranks;
};

/// Reads a step of a trace; without `step` the last traced one. Errors: UserError that names `where` (a path)
/// when the text is no trace, the step was not traced, or a rank has no pass in it.
StepTimeline read_step_timeline(const std::string& json, const std::string& where,
                                std::optional<int64_t> step);

/// Of each pipeline stage, the share of the time from the first pass of any rank to the last in which its
/// ranks run no pass, 0 to 1. Requires: `stages` divides the number of ranks.
std::vector<double> bubbles_of(const StepTimeline& timeline, int64_t stages);

/// Seconds from a pipeline's first pass to its last.
struct ScheduleTime {
  double measured = 0;
  /// What the stages' lists of passes take when each pass takes the mean of its virtual stage and direction
  /// in this step, and messages take no time.
  double simulated = 0;
};

/// Requires: `plan` has the timeline's ranks, and each rank has the plan's passes.
ScheduleTime schedule_time(const StepTimeline& timeline, const plan::Plan& plan);

}  // namespace tessera::monitor
