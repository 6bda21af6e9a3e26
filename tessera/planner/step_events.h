// SPDX-License-Identifier: Apache-2.0
// Runs the programs of all stages in simulated time. Private to this room.
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/planner/stage_program.h"

namespace tessera::planner {

/// What happened on one stage.
struct StageRecord {
  StepParts parts;  // but data and rest; they add up to the end of the last stage
  double gather_seconds = 0, reduce_seconds = 0;  // during which such messages were under way
  std::vector<plan::Timing::Span> actions;        // in the order of the stage's list
  std::vector<StepEvent> events;                  // if asked for
};

/// Note [Simulated time]: a stage computes, or waits; its messages are under way meanwhile, one at a time on
/// each channel and link, others queue behind it. While a stage both computes and has a message under way,
/// the computation takes compute_slowdown times as long and each message link_slowdown times. A send belongs
/// to the sending stage. Time goes from one event (the end of a computation or message) to the next over all
/// stages, which cost one comparison for each stage and event.
std::vector<StageRecord> run_programs(const StepCosts& costs, const std::vector<StageProgram>& programs);

}  // namespace tessera::planner
