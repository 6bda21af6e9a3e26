// SPDX-License-Identifier: Apache-2.0
// A model in one layout on a rank without peers, whose units are timed. Private to this room.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tessera/data/batch.h"
#include "tessera/eager/state.h"
#include "tessera/mesh/mesh.h"
#include "tessera/profile/unit_passes.h"
#include "tessera/recipe/recipe.h"

namespace tessera::profile {

/// The recipe of what is measured: model_of_few_blocks(), all of it trained, by labels alone. `kinds`: see
/// there.
recipe::Recipe measured_recipe(recipe::Recipe recipe, std::vector<std::string>* kinds);

/// Normally distributed images of the model's size. Every class in turn.
data::Batch random_batch(const arch::ModelConfig& model, int64_t size);

struct MeasuredLayout {
  int64_t tensor = 1;
  plan::Recompute recompute = plan::Recompute::kNone;  // of blocks
  bool with_optimizer = false;
};

/// One thread.
class MeasuredModel {
 public:
  /// `recipe`: of measured_recipe(). Errors: UserError where the model has no layers to cut.
  MeasuredModel(const recipe::Recipe& recipe, const MeasuredLayout& layout);

  const plan::Plan& plan() const { return plan_; }
  /// Values that the rank holds.
  int64_t values() const { return values_; }
  /// Forward and backward. `last`: of an optimizer step's micro-batches.
  std::vector<UnitPass> micro_batch(const data::Batch& batch, bool last);
  void forget_gradients() { state_->sharded->parameters_changed(); }
  /// Seconds of the step's end: votes, gradient norm, clipping, optimizer, moving average. Requires:
  /// with_optimizer; a last micro-batch before it.
  double update();

 private:
  plan::Plan plan_;
  std::unique_ptr<mesh::Mesh> mesh_;
  std::unique_ptr<eager::TrainState> state_;
  at::Tensor loss_;
  int64_t values_ = 0, updates_ = 0;
};

}  // namespace tessera::profile
