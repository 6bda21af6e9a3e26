// SPDX-License-Identifier: Apache-2.0
// Muon (Jordan, kellerjordan.github.io/posts/muon) for the matrices between the first and the last unit, with
// steps as long as AdamW's (Liu et al., arXiv 2502.16982: 0.2 sqrt(longer side)), and AdamW for the rest. As
// torch.optim.Muon with adjust_lr_fn = "match_rms_adamw", but on the CPU matrices are orthogonalised in
// float32. On a GPU that is done in bf16, as there (ops/orthogonalise.h).
//
// A matrix must be whole to be orthogonalised. For each unit the ranks that share its tensors gather its
// momentum, each orthogonalises the matrices that are its turn, and a sum in which all others add zeros
// brings every rank its shard: what a gather of the parameters and a reduction of their gradients send, in
// float32; where tensors are cut, also the other ranks' boxes (whole_matrices.h).
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tessera/ops/adamw.h"
#include "tessera/ops/orthogonalise.h"
#include "tessera/optim/update_rule.h"
#include "tessera/optim/whole_matrices.h"

namespace tessera::optim {
namespace {

at::Tensor orthogonal(const at::Tensor& matrix) {
  return ops::orthogonalised(matrix, ops::orthogonalise_dtype(matrix.device(), matrix.scalar_type()));
}

class Muon : public UpdateRule {
 public:
  explicit Muon(const recipe::OptimizerRecipe& options) : options_(options) {}
  std::vector<std::string> kept() const override { return {"exp_avg"}; }

  void prepare(std::span<const UnitState> units, mesh::Mesh& /*mesh*/) override {
    for (const UnitState& state : units) {
      const bool inner = state.units_before > 0 && state.units_after > 0;
      const auto& shards = state.unit->shards();
      std::vector<bool> wanted;
      squares_.emplace_back(shards.size());
      for (size_t k = 0; k < shards.size(); ++k) {
        wanted.push_back(inner && state.settings[k].matrix);
        if (!wanted[k]) squares_.back()[k] = at::zeros_like(shards[k].master);
      }
      units_.push_back(state.unit);
      matrices_.emplace_back(*state.unit, wanted, state.units_before);
    }
  }

  void step(std::span<const UnitState> units, const Step& step, mesh::Mesh& /*mesh*/) override {
    for (size_t i = 0; i < units.size(); ++i) {
      const UnitState& state = units[i];
      for (size_t k = 0; k < state.settings.size(); ++k)
        squares_[i][k].defined() ? adamw(state, k, squares_[i][k], step) : take_in(state, k, step);
      matrices_[i].replace(orthogonal);
      for (size_t k = 0; k < state.settings.size(); ++k) {
        if (!squares_[i][k].defined()) follow(state, k, step);
      }
    }
  }

  void append_shards(const std::string& prefix, StateShards& shards) const override {
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
  std::vector<WholeMatrices> matrices_;           // by unit: where Muon steps
};

}  // namespace

std::unique_ptr<UpdateRule> make_muon(const recipe::OptimizerRecipe& options) {
  return std::make_unique<Muon>(options);
}

}  // namespace tessera::optim
