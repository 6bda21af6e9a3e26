// SPDX-License-Identifier: Apache-2.0
// Muon (Jordan, kellerjordan.github.io/posts/muon) for the matrices between the first and the last unit, with
// steps as long as AdamW's (Liu et al., arXiv 2502.16982: 0.2 sqrt(longer side)), and AdamW for the rest. As
// torch.optim.Muon with adjust_lr_fn = "match_rms_adamw", but on the CPU matrices are orthogonalised in
// float32. On a GPU that is done in bf16, as there (ops/orthogonalise.h).
//
// A matrix must be whole to be orthogonalised. For each unit the ranks that share it gather its momentum,
// each orthogonalises the matrices that are its turn, and a sum in which all others add zeros brings every
// rank its shard: what a gather of the parameters and a reduction of their gradients send, in float32.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "tessera/checkpoint/manifest.h"
#include "tessera/ops/adamw.h"
#include "tessera/ops/orthogonalise.h"
#include "tessera/optim/update_rule.h"

namespace tessera::optim {
namespace {

at::Tensor orthogonal(const at::Tensor& matrix) {
  return ops::orthogonalised(matrix, ops::orthogonalise_dtype(matrix.device(), matrix.scalar_type()));
}

class Muon : public UpdateRule {
 public:
  explicit Muon(const recipe::OptimizerRecipe& options) : options_(options) {}
  std::vector<std::string> kept() const override { return {"exp_avg"}; }

  void prepare(std::span<const UnitState> units) override {
    require_whole_tensors(units, "muon");
    for (size_t i = 0; i < units.size(); ++i) {
      const bool inner = i > 0 && i + 1 < units.size();
      const auto& shards = units[i].unit->shards();
      squares_.emplace_back(shards.size());
      for (size_t k = 0; k < shards.size(); ++k) {
        const bool orthogonal = inner && units[i].settings[k].matrix;
        if (!orthogonal) squares_[i][k] = at::zeros_like(shards[k].master);
      }
      units_.push_back(units[i].unit);
    }
  }

  void step(std::span<const UnitState> units, const Step& step, mesh::Mesh& /*mesh*/) override {
    for (size_t i = 0; i < units.size(); ++i) {
      const UnitState& state = units[i];
      bool any = false;
      for (size_t k = 0; k < state.settings.size(); ++k) {
        any = any || !squares_[i][k].defined();
        squares_[i][k].defined() ? adamw(state, k, squares_[i][k], step) : take_in(state, k, step);
      }
      if (any) orthogonalise(i, state);
      for (size_t k = 0; k < state.settings.size(); ++k) {
        if (!squares_[i][k].defined()) follow(state, k, step);
      }
    }
  }

  void append_shards(const std::string& prefix, bool, StateShards& shards) const override {
    for (size_t i = 0; i < units_.size(); ++i) {
      for (size_t k = 0; k < squares_[i].size(); ++k) {
        if (!squares_[i][k].defined()) continue;
        add_shard(shards, prefix + "exp_avg_sq/", *units_[i], units_[i]->shards()[k], squares_[i][k]);
      }
    }
  }

 private:
  void adamw(const UnitState& state, size_t k, const at::Tensor& squares, const Step& step) const {
    const shard::Shard& shard = state.unit->shards()[k];
    const Setting& setting = state.settings[k];
    ops::adamw(shard.master, shard.gradient, part_of(state.kept[0], shard), squares,
               {step.lr * setting.lr_scale, options_.beta1, options_.beta2, options_.epsilon,
                setting.weight_decay, step.number, step.grad_scale});
  }

  /// The gradient into the momentum; the direction before it is orthogonal into the gradient.
  void take_in(const UnitState& state, size_t k, const Step& step) const {
    const shard::Shard& shard = state.unit->shards()[k];
    at::Tensor gradient = shard.gradient, average = part_of(state.kept[0], shard);
    gradient.mul_(step.grad_scale);
    average.mul_(options_.momentum).add_(gradient, 1.0 - options_.momentum);
    if (options_.nesterov) {
      gradient.mul_(1.0 - options_.momentum).add_(average, options_.momentum);
    } else {
      gradient.copy_(average);
    }
  }

  /// Of unit `i`, what lies in the gradient. Collective.
  void orthogonalise(size_t i, const UnitState& state) const {
    const shard::Unit& unit = *state.unit;
    const bool split = unit.shard_numel() < unit.padded_numel();
    at::Tensor whole = unit.gradient(), result = whole;
    size_t ranks = 1, rank = 0;
    if (split) {
      mesh::Group& group = unit.shard_group();
      ranks = static_cast<size_t>(group.size());
      rank = static_cast<size_t>(group.rank());
      whole = at::empty({unit.padded_numel()}, unit.gradient().options());
      group.all_gather(whole, unit.gradient(), unit.name() + ", momentum").wait();
      result = at::zeros_like(whole);
    }
    for (size_t k = 0, turn = i; k < unit.shards().size(); ++k) {
      if (squares_[i][k].defined() || turn++ % ranks != rank) continue;
      const auto& shape = unit.shards()[k].shape;
      const int64_t offset = unit.offset(k), numel = checkpoint::count_of(shape);
      const at::Tensor matrix = whole.narrow(0, offset, numel).view({shape[0], -1});
      result.narrow(0, offset, numel).copy_(orthogonal(matrix).view({-1}));
    }
    if (split) {
      unit.shard_group()
          .reduce_scatter(unit.gradient(), result, unit.gradient().scalar_type(),
                          unit.name() + ", directions")
          .wait();
    }
  }

  static void follow(const UnitState& state, size_t k, const Step& step) {
    const shard::Shard& shard = state.unit->shards()[k];
    const Setting& setting = state.settings[k];
    const int64_t rows = shard.shape[0];
    int64_t columns = 1;
    for (size_t dim = 1; dim < shard.shape.size(); ++dim) columns *= shard.shape[dim];
    const double lr = step.lr * setting.lr_scale;
    at::Tensor master = shard.master;
    master.mul_(1.0 - lr * setting.weight_decay)
        .sub_(shard.gradient, lr * 0.2 * std::sqrt(static_cast<double>(std::max(rows, columns))));
  }

  recipe::OptimizerRecipe options_;
  std::vector<const shard::Unit*> units_;
  std::vector<std::vector<at::Tensor>> squares_;  // by unit and shard; undefined where Muon steps
};

}  // namespace

std::unique_ptr<UpdateRule> make_muon(const recipe::OptimizerRecipe& options) {
  return std::make_unique<Muon>(options);
}

}  // namespace tessera::optim
