// SPDX-License-Identifier: Apache-2.0
// The training loop as a function: load, forward, backward, update; evaluate and save when due; stop when
// asked.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tessera/base/log.h"
#include "tessera/data/loader.h"
#include "tessera/eager/evaluate.h"
#include "tessera/eager/state.h"
#include "tessera/mesh/mesh.h"
#include "tessera/monitor/monitor.h"
#include "tessera/monitor/tensor_statistics.h"
#include "tessera/recipe/recipe.h"
#include "tessera/train/saver.h"

namespace tessera::train {

/// What one optimizer step did, the same on every rank (but for the times).
struct StepResult {
  double loss = 0;           // mean over the global batch
  double gradient_norm = 0;  // before clipping
  bool stop = false;         // some rank was asked to stop
  bool stalled = false;      // and the data of one did not come: the step was not made
  int64_t samples = 0;       // of the global batch; fewer in the short last step of an epoch
  std::string skipped = {};  // why nothing was updated, one line; empty: it was
  std::vector<monitor::TensorStatistics> statistics = {};  // where run.statistics_every asks for them
};

/// One optimizer step over `sizes.accumulation` micro-batches. Collective. `stop_requested` may be empty; it
/// is asked once, on the calling thread, after the last backward pass: StepResult::stop is true on every rank
/// when it returned true on any.
/// A step that the recipe's [guard] skips changes nothing but the step's number; one that
/// data::Batch::given_up keeps from being made (`stalled`) not even that. Throws UserError, before anything
/// changes, when the guard ends the run (names the first bad tensor) or too many samples are broken, and the
/// same on every rank.
StepResult train_step(eager::TrainState& state, data::TrainLoader& loader, const recipe::BatchSizes& sizes,
                      double lr, const std::function<bool()>& stop_requested, mesh::Mesh& mesh);

/// What the loop needs besides the state.
struct LoopInput {
  const data::Source& train;
  const data::Source& val;
  recipe::BatchSizes sizes;
  recipe::StepCounts counts;
  data::LoaderOptions loader;
  std::filesystem::path checkpoints;  // their folder
  std::function<bool()> stop_requested;
  int64_t steps_only = 0;                 // > 0: so many steps and nothing else, no evaluation, no checkpoint
  std::filesystem::path trace_file = {};  // rank 0's, of the steps that the recipe traces
};

struct LoopResult {
  bool finished = false;   // false: stopped early, state saved
  bool stalled = false;    // stopped, and threads of this rank hang in a file; they are left behind
  eager::Evaluation last;  // newest complete evaluation
  std::filesystem::path checkpoint;
  double train_seconds = 0;                 // all of the run, without evaluation and saving
  std::optional<double> images_per_second;  // over the steps of this process, if it made any
  StepResult last_step;
  int64_t broken_train = 0;  // training samples found broken by any rank, each once
  SaveTimes saves;
  int64_t skipped_steps = 0;  // of the whole run, by the guard
};

/// Collective. Trains from state.step to counts.total, or as far as input.steps_only says. `monitor` is null
/// except on rank 0.
LoopResult run(eager::TrainState& state, const LoopInput& input, mesh::Mesh& mesh, monitor::Monitor* monitor,
               Log& log);

}  // namespace tessera::train
