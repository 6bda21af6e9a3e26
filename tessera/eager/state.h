// SPDX-License-Identifier: Apache-2.0
// Everything a training run changes, as a value, and the only place that knows model, plan and mesh together.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/checkpoint/saved_by.h"
#include "tessera/data/batch.h"
#include "tessera/eager/data_record.h"
#include "tessera/eager/device.h"
#include "tessera/eager/device_input.h"
#include "tessera/mesh/mesh.h"
#include "tessera/models/segment.h"
#include "tessera/monitor/loss_scale.h"
#include "tessera/monitor/numerics_guard.h"
#include "tessera/optim/ema.h"
#include "tessera/optim/optimizer.h"
#include "tessera/optim/state_shards.h"
#include "tessera/plan/plan.h"
#include "tessera/recipe/recipe.h"
#include "tessera/shard/sharded_model.h"

namespace tessera::eager {

class DeviceUpdate;
class RecordedStep;
class Task;
class Teacher;

struct TrainState {
  recipe::Recipe recipe;
  plan::Plan plan;
  int64_t rank = 0;
  std::unique_ptr<DeviceInput> input;             // batches, on the device of all the rest
  std::shared_ptr<models::SegmentedModel> model;  // the only owner; the type is not complete here
  std::unique_ptr<shard::ShardedModel> sharded;
  std::unique_ptr<optim::Optimizer> optimizer;  // null when only evaluating
  std::unique_ptr<optim::Ema> ema;              // null where the recipe has none
  std::shared_ptr<const Task> task;             // what is learned
  std::shared_ptr<Teacher> teacher;             // null where it trains without one
  std::shared_ptr<DeviceUpdate> device_update;  // null where the host decides and updates (step_end.h)
  std::shared_ptr<RecordedStep> recorded;       // null where all of a step is eager
  models::ForwardContext context;  // of the micro-batch under way; parts read it through a pointer
  int64_t step = 0;                // optimizer steps made
  std::vector<double> best;  // scores of the best evaluations so far, the highest first: as many as are kept
  double score = 0;          // of the newest evaluation: checkpoint.best's metric, a loss negated
  monitor::NumericsGuard guard{monitor::GuardOptions{}};  // of the steps so far
  monitor::LossScale loss_scale;                          // fp16's; 1 otherwise
  bool eval_due = false;                                  // of this step, put off by a stop
  double seconds = 0;                                     // of training so far
  std::vector<std::string> classes;                       // names in label order, saved for `predict`
  std::optional<DataRecord> data;                         // of the loop; what was saved, after a load
  checkpoint::SavedBy run;                                // which saves; after a load, which has saved
};

/// bf16 where asked for, or where "auto" and the device is made for it: any but the CPU, and CPUs that
/// have kernels for it (ops/cpu.h).
at::ScalarType resolve_dtype(recipe::Dtype dtype, at::Device device = at::kCPU);
/// "fp32", "bf16" or "fp16".
std::string dtype_name(at::ScalarType dtype);

/// Builds (no memory), shards, initialises. Initial values do not depend on the plan. Collective only in that
/// every rank must call it. `with_optimizer`: false for evaluation. `device`: where everything lies and
/// computes.
std::unique_ptr<TrainState> assemble(const recipe::Recipe& recipe, const plan::Plan& plan, mesh::Mesh& mesh,
                                     bool with_optimizer, at::Device device = at::kCPU);

/// What the run decided for its device, before the first step. (assemble() follows run.cuda_graphs where it
/// is not "auto".)
void use_choices(TrainState& state, const DeviceChoices& choices);

/// A copy of the weights that computes in float32 and only evaluates: as other programs will see them. Holds
/// 8 bytes more of every number of this rank's shards while it lives. Collective as assemble().
std::unique_ptr<TrainState> in_float32(TrainState& state, mesh::Mesh& mesh);

/// What the state's parts read of the pass that follows.
void enter(TrainState& state, const data::Batch& batch, bool training, uint64_t key);
/// Logits [size, classes] float32, on the state's device, of a batch of any size >= 1 (0 for models with
/// buffers), through the sharded model. `key`: the step's, for dropout; used when `training`. Collective.
at::Tensor forward(TrainState& state, const data::Batch& batch, bool training, uint64_t key);
/// The same of images that are on the device already.
at::Tensor forward(TrainState& state, const DeviceInput::Input& input, bool training, uint64_t key);

/// For a rank that has no sample while others compute: one black image whose result must not count, or none
/// where it would count among the statistics of a model with buffers.
data::Batch placeholder_batch(const TrainState& state);

/// What checkpoint::save is given; the shards point into `state`, or hold a copy of what lies on a device.
struct SaveRequest {
  checkpoint::SaveOptions options;
  optim::StateShards shards;
  checkpoint::Progress progress;
};
/// Collective: buffers become the mean over the ranks first.
SaveRequest save_request(TrainState& state, const std::filesystem::path& folder, bool best);
/// Collective. Returns the checkpoint's folder.
std::filesystem::path save_state(TrainState& state, mesh::Mesh& mesh, const std::filesystem::path& folder,
                                 bool best);
/// Which weights of a checkpoint.
enum class Weights { kTrained, kAverage };
/// Parameters and buffers, and with an optimizer also its state, the moving average and the run's position. A
/// run whose recipe averages and that resumes from a checkpoint without an average starts one. Errors:
/// UserError when kAverage is asked for and there is none.
void load_state(TrainState& state, const std::filesystem::path& checkpoint,
                Weights weights = Weights::kTrained);

}  // namespace tessera::eager
