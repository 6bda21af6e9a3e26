// AdamW over the local shards of a sharded model. No reduction is the caller's: gradients are summed already.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/recipe/recipe.h"
#include "tessera/shard/sharded_model.h"

namespace tessera::train {

class AdamwOptimizer {
 public:
  /// `decays(name)`: does weight decay apply to the parameter of this name?
  AdamwOptimizer(const shard::ShardedModel& model, const recipe::OptimizerRecipe& options,
                 const std::function<bool(const std::string&)>& decays);

  /// One update of the master values; gradients are multiplied by `grad_scale` first. Local.
  void step(double lr, double grad_scale);
  /// Updates made so far (bias correction).
  int64_t steps() const { return steps_; }
  void set_steps(int64_t steps) { steps_ = steps; }
  /// This rank's slices of both moments.
  void append_slices(std::vector<checkpoint::Slice>& slices) const;

 private:
  struct UnitState {
    const shard::Unit* unit;
    at::Tensor exp_avg, exp_avg_sq;  // [shard_numel] float32
    std::vector<bool> decays;        // by piece
  };

  recipe::OptimizerRecipe options_;
  std::vector<UnitState> states_;
  int64_t steps_ = 0;
};

/// A slice over 1-D float32 memory of one piece of a unit.
checkpoint::Slice piece_slice(const std::string& prefix, const shard::Unit& unit, const shard::Piece& piece,
                              const at::Tensor& flat);

}  // namespace tessera::train
