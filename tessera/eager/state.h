// SPDX-License-Identifier: Apache-2.0
// Everything a training run changes, as a value, and the only place that knows model, plan and mesh together.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/data/batch.h"
#include "tessera/eager/device.h"
#include "tessera/eager/device_input.h"
#include "tessera/loop/run_state.h"
#include "tessera/mesh/mesh.h"
#include "tessera/models/segment.h"
#include "tessera/optim/ema.h"
#include "tessera/optim/optimizer.h"
#include "tessera/parallel/pipeline.h"
#include "tessera/parallel/tensor_group.h"
#include "tessera/shard/sharded_model.h"

namespace tessera::eager {

class DeviceUpdate;
class RecordedStep;
class Task;
class Teacher;

/// The micro-batch whose forward pass is under way.
struct UnderWay {
  int64_t micro_batch = 0;  // in the step
  bool has_samples = true;  // false: a placeholder batch
};

/// A run's state with the numbers that LibTorch trains.
struct TrainState : loop::RunState {
  int64_t rank = 0;
  std::unique_ptr<DeviceInput> input;                     // batches, on the device of all the rest
  std::unique_ptr<parallel::TensorGroups> tensor_groups;  // over which layers are cut
  std::unique_ptr<parallel::Pipeline> pipeline;           // null: one stage
  std::shared_ptr<models::SegmentedModel> model;  // all of it; the only owner; the type is not complete here
  std::unique_ptr<shard::ShardedModel> sharded;   // this rank's stage of it
  std::unique_ptr<optim::Optimizer> optimizer;    // null when only evaluating
  std::unique_ptr<optim::Ema> ema;                // null where the recipe has none
  std::shared_ptr<const Task> task;               // what is learned
  std::shared_ptr<Teacher> teacher;               // null where it trains without one
  std::shared_ptr<DeviceUpdate> device_update;    // null where the host decides and updates (step_end.h)
  std::shared_ptr<RecordedStep> recorded;         // null where all of a step is eager
  models::ForwardContext context;  // of the micro-batch under way; segments read it through a pointer
  UnderWay pass;
};

/// bf16 where asked for, or where "auto" and the device is made for it: any but the CPU, and CPUs that
/// have kernels for it (ops/cpu/cpu.h).
at::ScalarType resolve_dtype(recipe::Dtype dtype, at::Device device = at::kCPU);
/// "fp32", "bf16" or "fp16".
std::string dtype_name(at::ScalarType dtype);

/// Builds (no memory), shards, initialises. Initial values do not depend on the plan. Collective only in that
/// every rank must call it. `with_optimizer`: false for evaluation. `device`: where everything lies and
/// computes.
std::unique_ptr<TrainState> assemble(const recipe::Recipe& recipe, const plan::Plan& plan, mesh::Mesh& mesh,
                                     bool with_optimizer, at::Device device = at::kCPU);

/// A training as assemble() makes it, that computes in float64 on the CPU whatever the recipe's precision:
/// parameters, gradients and the optimizer's state. Weights begin as the float32 initial values; images are
/// the float32 ones. For comparisons: two layouts differ by rounding of 1e-16. Requires: a model without
/// buffers (BatchNorm computes in float32). Collective as assemble().
std::unique_ptr<TrainState> assemble_in_float64(const recipe::Recipe& recipe, const plan::Plan& plan,
                                                mesh::Mesh& mesh);

/// What the run decided for its device, before the first step. (assemble() follows run.cuda_graphs where it
/// is not "auto".)
void use_choices(TrainState& state, const DeviceChoices& choices);

/// A copy of the weights that computes in float32 and only evaluates: as other programs will see them. Holds
/// 8 bytes more of every number of this rank's shards while it lives. Collective as assemble().
std::unique_ptr<TrainState> in_float32(TrainState& state, mesh::Mesh& mesh);

/// What the state's parts read of the pass that follows. Collective where layers are cut.
void enter(TrainState& state, const data::Batch& batch, bool training, uint64_t key);
/// Logits [size, classes] float32, on the state's device, of a batch of any size >= 1 (0 for models with
/// buffers or cut layers), through the sharded model. Requires: one stage (else stage_passes.h). `key`: the
/// step's, for dropout; used when `training`. Collective.
at::Tensor forward(TrainState& state, const data::Batch& batch, bool training, uint64_t key);
/// The same of images that are on the device already.
at::Tensor forward(TrainState& state, const DeviceInput::Input& input, bool training, uint64_t key);

/// For a rank that has no sample while others compute: one black image whose result must not count, or none
/// where it would count among the statistics of a model with buffers, or be gathered and computed by the
/// ranks of a tensor group.
data::Batch placeholder_batch(const TrainState& state);

/// Position in the model of a segment or of a parameter, by its name: the same on every rank, whatever the
/// rank holds.
int64_t order_in_model(const TrainState& state, const std::string& name);

}  // namespace tessera::eager
