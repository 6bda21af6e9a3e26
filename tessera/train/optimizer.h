// AdamW or LAMB over the local shards of a sharded model. No reduction of gradients is the caller's: they are
// summed already.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"
#include "tessera/mesh/mesh.h"
#include "tessera/recipe/recipe.h"
#include "tessera/shard/sharded_model.h"

namespace tessera::train {

class Optimizer {
 public:
  /// `decays(name)`: does weight decay apply to the parameter of this name? LAMB adapts the length of these
  /// parameters' steps only; the others' are AdamW's.
  Optimizer(const shard::ShardedModel& model, const recipe::OptimizerRecipe& options,
            const std::function<bool(const std::string&)>& decays, mesh::Mesh& mesh);

  /// One update of the master values; gradients are multiplied by `grad_scale` first. AdamW: local. LAMB:
  /// collective, one all-reduce of two numbers a tensor, and the gradients are used up.
  void step(double lr, double grad_scale);
  /// Updates made so far (bias correction).
  int64_t steps() const { return steps_; }
  void set_steps(int64_t steps) { steps_ = steps; }
  /// This rank's slices of both moments: "adamw.exp_avg/NAME", or "lamb.exp_avg/NAME".
  void append_slices(std::vector<checkpoint::Slice>& slices) const;

 private:
  struct UnitState {
    const shard::Unit* unit;
    at::Tensor exp_avg, exp_avg_sq;  // [shard_numel] float32
    std::vector<bool> decays;        // by piece
  };

  void adamw_step(double lr, double grad_scale);
  void lamb_step(double lr, double grad_scale);

  recipe::OptimizerRecipe options_;
  mesh::Mesh& mesh_;
  std::vector<UnitState> states_;
  int64_t steps_ = 0;
};

/// A slice over 1-D float32 memory of one piece of a unit.
checkpoint::Slice piece_slice(const std::string& prefix, const shard::Unit& unit, const shard::Piece& piece,
                              const at::Tensor& flat);

}  // namespace tessera::train
