// SPDX-License-Identifier: Apache-2.0
// A model in one layout on a rank, with or without peers, whose units are timed. Private to this room.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/data/batch.h"
#include "tessera/eager/state.h"
#include "tessera/loop/backend.h"
#include "tessera/mesh/mesh.h"
#include "tessera/profile/head_start.h"
#include "tessera/profile/measured_device.h"
#include "tessera/profile/unit_passes.h"
#include "tessera/recipe/recipe.h"

namespace tessera::profile {

/// The recipe of what is measured: model_of_few_blocks(), all of it trained, by labels alone. `kinds`: see
/// there.
recipe::Recipe measured_recipe(recipe::Recipe recipe, std::vector<std::string>* kinds);

/// Of the update behind a measured pass, which changes values by next to nothing.
loop::UpdateSettings measured_update(const recipe::Recipe& recipe);

/// The end of a step whose backward pass is over, as in a training: seconds of the device from the first
/// launch, queued behind a head start, to the end of `also`. Waits for the device.
double timed_update(eager::TrainState& state, const at::Tensor& loss, mesh::Mesh& mesh, HeadStart& head_start,
                    const std::function<void()>& also = {});

/// Normally distributed images of the model's size, on `device`. Every class in turn.
eager::DeviceInput::Input random_input(const arch::ModelConfig& model, int64_t size,
                                       c10::Device device = c10::Device(c10::DeviceType::CPU));

struct MeasuredLayout {
  int64_t tensor = 1;
  plan::Recompute recompute = plan::Recompute::kNone;  // of blocks
  bool with_optimizer = false;
  /// The rank's peers, with which it exchanges activations; null: they do not exist (lone_rank.h). Has the
  /// groups of spans_with_peers(), and outlives the model.
  mesh::Mesh* peers = nullptr;
};

/// Of the groups in which `ranks` ranks compute the recipe's model, `tensor` of them together.
std::vector<mesh::Span> spans_with_peers(const recipe::Recipe& recipe, int64_t tensor, int64_t ranks);

/// One thread.
class MeasuredModel {
 public:
  /// `recipe`: of measured_recipe(). Errors: UserError where the model has no layers to cut.
  MeasuredModel(const recipe::Recipe& recipe, const MeasuredLayout& layout, const MeasuredDevice& on = {});

  const plan::Plan& plan() const { return plan_; }
  /// Values that the rank holds.
  int64_t values() const { return values_; }
  /// Those of a unit of plan().
  int64_t values_of(const plan::UnitPlan& unit) const;
  /// Forward and backward. `last`: of an optimizer step's micro-batches; with peers their gradients are
  /// summed then. On a device, behind a head start for the host: times are the device's own, as where passes
  /// are replayed as graphs. Seconds of messages count with peers alone. Collective over the peers.
  std::vector<UnitPass> micro_batch(const eager::DeviceInput::Input& input, bool last);
  /// Was the head start of the last micro_batch() shorter than the host took? Then its times are too long.
  bool waited_for_host() const { return !device_.is_cpu() && host_seconds_ > head_start_seconds_; }
  /// Seconds of as many passes over `input` that are replayed as a CUDA graph, one by one; empty where the
  /// device cannot record them. Requires: without optimizer.
  std::vector<double> replayed_passes(eager::DeviceInput::Input& input, int64_t rounds);
  void forget_gradients() { state_->sharded->parameters_changed(); }
  /// Seconds of the step's end: votes, gradient norm, clipping, optimizer, moving average; on a device as
  /// those of micro_batch(). Requires: with_optimizer; a last micro-batch before it.
  double update();

 private:
  c10::Device device_;
  HeadStart head_start_;
  double host_seconds_ = 0;        // in which the host queued the micro-batch before
  double head_start_seconds_ = 0;  // that it had
  plan::Plan plan_;
  std::unique_ptr<mesh::Mesh> lone_;  // null with peers
  mesh::Mesh* mesh_;
  std::unique_ptr<eager::TrainState> state_;
  at::Tensor loss_;
  int64_t values_ = 0, updates_ = 0;
};

}  // namespace tessera::profile
