// SPDX-License-Identifier: Apache-2.0
// What the loop, evaluations and saves know of the numbers that are trained: a back end computes them.
// LibTorch's is eager/backend.h; a tiny one in plain C++ is tests/loop/linear_backend.h. No LibTorch here.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/data/batch.h"
#include "tessera/data/loader.h"
#include "tessera/loop/evaluation.h"
#include "tessera/monitor/numerics_guard.h"
#include "tessera/monitor/tensor_statistics.h"

namespace tessera::loop {

/// One optimizer step to be made.
struct StepRequest {
  int64_t step = 0;         // steps made before it
  uint64_t key = 0;         // of (seed, step): for dropout
  double loss_scale = 1;    // multiplies the loss before backward
  bool statistics = false;  // Backend::statistics() will be asked for
};

/// What the micro-batches of a step were made of.
struct StepSamples {
  bool given_up = false;  // the data of one did not come to this rank (data::Batch::given_up)
  int64_t samples = 1;    // of the whole step
};

/// The votes of one rank at the end of a step. Combined over all ranks: any stop, any stalled, sum of broken.
struct Votes {
  bool stop = false;     // the rank was asked to stop
  bool stalled = false;  // the rank's data loader gave no batch
  int64_t broken = 0;    // samples found broken since the last step
};

/// What all ranks know of a step.
struct StepValues {
  double loss = 0;           // mean over the global batch
  double gradient_norm = 0;  // before clipping
};

/// How a step updates, known before its values.
struct UpdateSettings {
  double lr = 0;
  double clip = 0;           // train.clip; 0 = no clipping
  double loss_scale = 1;     // what the loss was multiplied with
  monitor::StepLimit limit;  // of the guard: a back end whose host waits for a device may update by it
};

struct DeviceMemory {
  int64_t bytes = 0, peak_bytes = 0;  // of tensors there: now, and the most so far
};

/// Which of the samples of an evaluation a rank loads.
struct LoadingRank {
  int64_t rank = 0, ranks = 1;  // among those that share out the samples
  bool loads = true;            // false: another rank loads those that this one computes
};

/// Weights that evaluate. While one lives, its back end does not train. One thread.
class Evaluator {
 public:
  virtual ~Evaluator() = default;
  /// Every rank loads, unless a back end says otherwise.
  virtual LoadingRank loading(const World& world) const { return {world.rank(), world.size()}; }
  /// For a rank that has no sample while others compute: a batch whose results must not count.
  virtual data::Batch placeholder_batch() const = 0;
  /// [batch.size, classes], row after row. Collective.
  virtual std::vector<float> logits(const data::Batch& batch) = 0;
  /// What counts the batches of an evaluation. The default takes logits() and counts on the host; a back end
  /// whose logits lie on a device may count there. `source` and `options` outlive it.
  virtual std::unique_ptr<Judge> judge(const data::Source& source, const EvaluateOptions& options);
};

/// This rank's state in the host's memory, for a checkpoint to read or to fill.
class HostState {
 public:
  virtual ~HostState() = default;
  /// Valid while this lives. Those that shall not be loaded may be erased.
  virtual std::vector<checkpoint::TensorShard>& shards() = 0;
  /// After loading: the back end takes the values. Shards that nothing was loaded into have the values of
  /// before.
  virtual void store() = 0;
};

/// One rank's part of a training. Owned by one thread. Functions are collective unless they say "local".
class Backend {
 public:
  virtual ~Backend() = default;

  // A training step: begin_step, forward_backward, vote, sums (statistics before it), and update or discard.
  // A stalled step ends with discard after vote.
  /// Local.
  virtual void begin_step(const StepRequest& request) = 0;
  /// Forward and backward passes of the step's micro-batches, which come from the loader (one_by_one.h).
  /// Losses and gradients add up over micro-batches and ranks to the mean over the step.
  virtual StepSamples forward_backward(data::TrainLoader& loader, int64_t micro_batches) = 0;
  /// The votes of all ranks.
  virtual Votes vote(const Votes& mine) = 0;
  /// Of activations and gradients of the step, where its request said so; else empty.
  virtual std::vector<monitor::TensorStatistics> statistics() = 0;
  /// Loss and norm over all ranks. May begin the update where `settings.limit` allows the values.
  virtual StepValues sums(const UpdateSettings& settings) = 0;
  /// Updates parameters and moving average. Ends the step.
  virtual void update(const UpdateSettings& settings) = 0;
  /// Nothing of the step stays. Ends the step. Local.
  virtual void discard() = 0;
  /// After sums: the first parameter, in forward order, whose gradient is not finite on any rank; "": none.
  virtual std::string non_finite_gradient() = 0;
  /// The next micro-batch comes from another loader. Local.
  virtual void forget_loaded() {}

  /// `average`: of the moving average of the weights. `float32`: in that precision whatever trains.
  virtual std::unique_ptr<Evaluator> evaluator(bool average, bool float32) = 0;
  virtual bool has_average() const { return false; }
  /// Does any part of it compute in less than float32, fp8 layers included? Local.
  virtual bool is_narrow() const { return false; }
  /// Is its compute dtype less than float32? Local.
  virtual bool computes_narrow() const { return false; }

  /// Copies nothing where the state is in the host's memory. Collective before a save, local before a load.
  virtual std::unique_ptr<HostState> state_to_save() = 0;
  virtual std::unique_ptr<HostState> state_to_load() = 0;
  /// Counters that belong to the state (of the optimizer, of the average), in a checkpoint's JSON object, and
  /// back. `has_average`: the checkpoint has one. Local.
  virtual void write_counters(nlohmann::json& progress) const = 0;
  virtual void read_counters(const nlohmann::json& progress, int64_t step, bool has_average) = 0;

  /// Where it is, for errors: "unit blocks.3". Local.
  virtual std::string where() const = 0;
  /// Of this rank's device, without waiting for it; nothing for the CPU. Local.
  virtual std::optional<DeviceMemory> device_memory() const { return std::nullopt; }
};

}  // namespace tessera::loop
