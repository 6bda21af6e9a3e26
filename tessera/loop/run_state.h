// SPDX-License-Identifier: Apache-2.0
// What a run knows of itself beside the numbers that its back end trains: how far it came, what it decided.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/saved_by.h"
#include "tessera/loop/backend.h"
#include "tessera/loop/data_record.h"
#include "tessera/monitor/loss_scale.h"
#include "tessera/monitor/numerics_guard.h"
#include "tessera/plan/plan.h"
#include "tessera/recipe/recipe.h"

namespace tessera::loop {

/// A value. Equal on all ranks, but for times.
struct RunState {
  recipe::Recipe recipe;
  plan::Plan plan;
  int64_t step = 0;          // optimizer steps made
  std::vector<double> best;  // scores of the best evaluations, highest first
  double score = 0;          // of the newest evaluation: checkpoint.best's metric, a loss negated
  monitor::NumericsGuard guard{monitor::GuardOptions{}};  // of the steps so far
  monitor::LossScale loss_scale;                          // fp16's; 1 otherwise
  bool eval_due = false;                                  // of this step, put off by a stop
  double seconds = 0;                                     // of training so far
  std::vector<std::string> classes;                       // names in label order, saved for `predict`
  std::optional<DataRecord> data;                         // of the loop; what was saved, after a load
  checkpoint::SavedBy run;                                // which saves; after a load, which has saved
};

/// What checkpoint::save is given. `memory` holds what the shards point to.
struct SaveRequest {
  checkpoint::SaveOptions options;
  std::unique_ptr<HostState> memory;
  checkpoint::Progress progress;
};
/// Collective.
SaveRequest save_request(RunState& state, Backend& backend, const std::filesystem::path& folder, bool best);
/// Collective. Returns the checkpoint's folder.
std::filesystem::path save_state(RunState& state, Backend& backend, World& world,
                                 const std::filesystem::path& folder, bool best);

/// Which weights of a checkpoint.
enum class Weights { kTrained, kAverage };
/// Parameters and buffers, and with an optimizer also its state, the moving average and the run's position. A
/// run whose recipe averages and that resumes from a checkpoint without an average starts one. Local. Errors:
/// UserError when kAverage is asked for and there is none, and of checkpoint::load.
void load_state(RunState& state, Backend& backend, const std::filesystem::path& checkpoint,
                Weights weights = Weights::kTrained);

}  // namespace tessera::loop
