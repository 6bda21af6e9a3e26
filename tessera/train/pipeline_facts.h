// SPDX-License-Identifier: Apache-2.0
// What a run says of its pipeline before it starts: stages, schedule, bubble, memory.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tessera/loop/world.h"
#include "tessera/mesh/mesh.h"
#include "tessera/plan/plan.h"
#include "tessera/train/prepared.h"

namespace tessera::train {

/// Names and values for people; none without a pipeline. Requires: job, ranks, device, plan, sizes, choices.
std::vector<std::pair<std::string, std::string>> pipeline_facts(const Prepared& p);

/// What a stage did in the training steps since this start: of its ranks the longest times. The largest peak
/// of memory is that of the process.
struct StageFigures {
  std::string name;              // "stage 1 (blocks.6 to head)"
  double computed = 0;           // seconds, without waits for data and other ranks
  double waited_for_stages = 0;  // seconds, for activations and gradients, and for others to end a step
  double waited_for_ranks = 0;   // seconds, in other collectives, and for the stage's last rank to end a step
  int64_t peak_bytes = 0;        // resident
};
/// By stage, the same on every rank; none without a pipeline. `in_steps`: of this rank. Collective.
std::vector<StageFigures> stage_figures(const plan::Plan& plan, mesh::Mesh& mesh,
                                        const loop::StepSeconds& in_steps);
/// "slowest stage: stage 1 (blocks.6 to head), which computed 9.1 s and waited 0.3 s for other stages; the
/// others waited up to 2.1 s".
/// Requires: figures of two stages or more.
std::string slowest_stage_text(const std::vector<StageFigures>& stages);

}  // namespace tessera::train
