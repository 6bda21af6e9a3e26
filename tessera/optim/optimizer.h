// SPDX-License-Identifier: Apache-2.0
// The optimizer over the local shards of a sharded model. No reduction of gradients is the caller's: they are
// summed already. The rules themselves: update_rule.h.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/mesh/mesh.h"
#include "tessera/optim/update_rule.h"
#include "tessera/recipe/recipe.h"
#include "tessera/shard/sharded_model.h"

namespace tessera::optim {

/// A parameter of the model, as the optimizer needs it.
struct ModelParameter {
  std::string name;
  bool matrix = false;                        // or a convolution; not a bias, norm, token or position
  int64_t units_before = 0, units_after = 0;  // in the whole model, whatever this rank holds
};

class Optimizer {
 public:
  /// `parameters`: all of the model's, also those that other ranks hold. How each is trained:
  /// recipe/parameter_groups.h. Errors: UserError when a group matches no parameter. Collective.
  Optimizer(const shard::ShardedModel& model, const recipe::OptimizerRecipe& options,
            const std::vector<ModelParameter>& parameters, mesh::Mesh& mesh);

  /// Frozen parameters' gradients become 0, so that they are no part of the norm. Local.
  void forget_frozen_gradients() const;
  /// One update of the master values; gradients are multiplied by `grad_scale` first, and used up.
  /// Collective.
  void step(double lr, double grad_scale);

  /// Can an update be queued on a device before the host knows the gradient's norm? (AdamW and Adam, state on
  /// the device)
  bool can_queue() const;
  /// What the host knows of the next update: the first argument of queue().
  std::vector<float> numbers_to_queue(double lr) const;
  /// The same update as step()'s with numbers that are on the device already (QueuedRule::queue). Local.
  void queue(const at::Tensor& numbers, const at::Tensor& grad_scale, const at::Tensor& use) const;
  /// What queue() writes: flat tensors of every unit. Says what copies_will_be_written() does.
  std::vector<at::Tensor> queued_writes() const;
  /// Tells the units that a replay of a recorded queue() follows (Unit::values_to_write).
  void copies_will_be_written() const;
  /// The update that was queued last was made, not skipped.
  void queued_update_was_made() { ++steps_; }

  /// Updates made so far (bias correction).
  int64_t steps() const { return steps_; }
  void set_steps(int64_t steps) { steps_ = steps; }
  /// This rank's shards of what is kept: "adamw.exp_avg/NAME", "sgd.momentum_buffer/NAME", ...
  void append_shards(StateShards& shards) const;

 private:
  recipe::OptimizerRecipe options_;
  mesh::Mesh& mesh_;
  std::unique_ptr<UpdateRule> rule_;
  std::vector<UnitState> states_;
  int64_t steps_ = 0;
};

}  // namespace tessera::optim
