// SPDX-License-Identifier: Apache-2.0
// The training step on one screen: load, forward and backward, agree, judge, update.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/data/loader.h"
#include "tessera/loop/backend.h"
#include "tessera/loop/run_state.h"
#include "tessera/loop/world.h"
#include "tessera/monitor/tensor_statistics.h"
#include "tessera/recipe/recipe.h"

namespace tessera::loop {

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

/// Non-finite values that end the run. The error says what to change; the caller adds where to go on.
class NonFinite : public UserError {
 public:
  using UserError::UserError;
};

/// One optimizer step over `micro_batches` micro-batches. Collective. `stop_requested` may be empty; it is
/// asked once, on the calling thread, after the last backward pass: StepResult::stop is true on every rank
/// when it returned true on any. A skipped step only advances the step counter; a stalled step
/// (data::Batch::given_up) changes nothing. Errors, before anything changes, and the same on every rank:
/// NonFinite when the guard ends the run (names the first non-finite tensor), UserError when too many samples
/// are broken.
StepResult train_step(RunState& state, Backend& backend, World& world, data::TrainLoader& loader,
                      int64_t micro_batches, double lr, const std::function<bool()>& stop_requested);

/// Asks the state's loss scale and guard about the step under way, and tells them of it. "": use its
/// gradient. Else why it must be skipped, in one line. Collective. Errors: NonFinite where the run must end.
std::string judge_step(RunState& state, Backend& backend, const StepValues& values);

}  // namespace tessera::loop
