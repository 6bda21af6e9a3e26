// SPDX-License-Identifier: Apache-2.0
// What a training leaves when it ends: summary, report, and lines for people.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "tessera/base/log.h"
#include "tessera/loop/loop.h"
#include "tessera/mesh/mesh.h"
#include "tessera/monitor/monitor.h"
#include "tessera/recipe/recipe.h"
#include "tessera/train/pipeline_facts.h"
#include "tessera/train/prepared.h"

namespace tessera::train {

/// "no checkpoint is saved: start anew", or from which steps --resume goes on: what to do after non-finite
/// values that ended the run. What is saved last may be ruined as well.
std::string where_to_go_on(const std::filesystem::path& checkpoints);

/// Bytes of the largest rank, and what was predicted for it.
struct UsedMemory {
  int64_t peak = 0;      // resident at once, of the whole program
  int64_t training = 0;  // of it what training took, without messages shared on the host
  int64_t predicted = 0;
  struct OfDevice {
    int64_t peak = 0, predicted = 0;
  };
  std::optional<OfDevice> device = {};  // on a GPU
};
/// Collective.
UsedMemory used_memory(const Prepared& p, mesh::Mesh& mesh);

/// A run that has trained all its steps.
struct Finished {
  loop::LoopResult result;
  std::vector<StageFigures> stages;  // of a pipeline
  UsedMemory memory = {};
};

/// Says how long a step takes and how much memory this rank needs beside what was predicted; warns where the
/// step is more than a tenth off, or the memory more than a tenth above. `seconds`: loop::StepPace.
void tell_pace(const Prepared& p, int64_t rank, double seconds, Log& log);
/// Writes summary.json of a finished run. Rank 0.
void write_summary(const Prepared& p, const Finished& run, mesh::Mesh& mesh);
/// Writes report.html of a finished run. Rank 0.
void write_report(const Prepared& p, const Finished& run, const monitor::Monitor& monitor);
/// Writes summary.json of a run of a few steps, by pretended or real ranks, which has saved nothing: what a
/// step costs, and no accuracy. Collective.
void end_trial(const Prepared& p, const loop::LoopResult& result, mesh::Mesh& mesh, Log& log);

/// Why this process should stop now (a signal, the time limit); "": it need not.
std::string stop_reason(const recipe::Recipe& recipe);
/// Why this run stops: this rank's reason, else that of the first rank that has one. Collective.
std::string agreed_stop_reason(const recipe::Recipe& recipe, mesh::Mesh& mesh);
/// `why`: of a run that stops early.
void say_how_it_ended(const Prepared& p, const Finished& run, const std::string& why, Log& log);

}  // namespace tessera::train
