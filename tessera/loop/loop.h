// SPDX-License-Identifier: Apache-2.0
// The training loop as a function: makes steps, evaluates and saves when due, stops when asked.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>

#include "tessera/base/log.h"
#include "tessera/data/loader.h"
#include "tessera/loop/evaluation.h"
#include "tessera/loop/folder_fault.h"
#include "tessera/loop/run_state.h"
#include "tessera/loop/saver.h"
#include "tessera/loop/train_step.h"
#include "tessera/loop/world.h"
#include "tessera/monitor/monitor.h"
#include "tessera/recipe/recipe.h"

namespace tessera::loop {

/// What the loop needs besides the state.
struct LoopInput {
  const data::Source& train;
  const data::Source& val;
  recipe::BatchSizes sizes;
  recipe::StepCounts counts;
  data::LoaderOptions loader;
  std::filesystem::path checkpoints;  // their folder
  std::function<bool()> stop_requested;
  int64_t steps_only = 0;  // > 0: so many steps and nothing else, no evaluation, no checkpoint
  /// Of the steps that the recipe traces; empty: another rank writes it.
  std::filesystem::path trace_file = {};
  /// Called once, when enough steps of this process were made to know their pace (StepPace). May be empty.
  std::function<void(double seconds)> when_pace_is_known = {};
  /// Looked at with every line of metrics and before every change of `checkpoints`. Ends the run with
  /// FolderLost.
  FolderFault folder_fault = {};
};

struct LoopResult {
  bool finished = false;  // false: stopped early, state saved
  bool stalled = false;   // stopped, and threads of this rank hang in a file; they are left behind
  Evaluation last;        // newest complete evaluation
  std::filesystem::path checkpoint;
  double train_seconds = 0;                 // all of the run, without evaluation and saving
  std::optional<double> images_per_second;  // over the steps of this process, if it made any
  std::optional<double> step_seconds;       // StepPace, of this process
  StepSeconds in_steps;                     // of this rank
  StepResult last_step;
  int64_t broken_train = 0;  // training samples found broken by any rank, each once
  SaveTimes saves;
  int64_t skipped_steps = 0;  // of the whole run, by the guard
};

/// Collective. Trains from state.step to counts.total, or as far as input.steps_only says. `monitor` is null
/// except on rank 0.
LoopResult run(RunState& state, Backend& backend, World& world, const LoopInput& input,
               monitor::Monitor* monitor, Log& log);

}  // namespace tessera::loop
