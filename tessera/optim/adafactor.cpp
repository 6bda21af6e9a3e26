// SPDX-License-Identifier: Apache-2.0
// Adafactor as big_vision has it (scale_by_adafactor in its optax.py; Zhai et al., arXiv 2106.04560): of a
// matrix's squared gradients only the means of rows and columns are kept, and a momentum of the update. Ours
// is float32, big_vision's bfloat16. Squares are summed over the ranks; rows and columns are whole on every
// rank.
#include "tessera/ops/adafactor.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "tessera/optim/update_rule.h"

namespace tessera::optim {
namespace {

constexpr double kDecayExponent = 0.8, kMostDecay = 0.999, kLeastSquare = 1e-30;

class Adafactor : public UpdateRule {
 public:
  explicit Adafactor(const recipe::OptimizerRecipe& options) : momentum_(options.momentum) {}

  std::vector<std::string> kept() const override {
    if (momentum_ == 0) return {};
    return {"exp_avg"};
  }

  void prepare(std::span<const UnitState> units) override {
    require_whole_tensors(units, "adafactor");
    for (const UnitState& state : units) {
      for (const shard::Shard& shard : state.unit->shards()) {
        Moments moments{state.unit, &shard, ops::factored(shard.shape), {}, {}, {}};
        if (moments.factored) {
          moments.row = at::zeros(moments.factored->row_shape, shard.master.options());
          moments.column = at::zeros(moments.factored->column_shape, shard.master.options());
        } else {
          moments.squares = at::zeros_like(shard.master);
        }
        moments_.push_back(std::move(moments));
      }
    }
  }

  void step(std::span<const UnitState> units, const Step& step, mesh::Mesh& mesh) override {
    const double decay =
        std::min(kMostDecay, 1.0 - std::pow(static_cast<double>(step.number), -kDecayExponent));
    take_in_squares(step.grad_scale, decay, mesh);
    size_t next = 0;
    for (const UnitState& state : units) {
      for (const Setting& setting : state.settings) {
        Moments& m = moments_[next++];
        const shard::Shard& shard = *m.shard;
        if (m.factored) {
          ops::divide_by_root(*m.factored, shard.gradient, shard.interval().begin, step.grad_scale, m.row,
                              m.column);
        } else {
          ops::divide_by_root(shard.gradient, step.grad_scale, m.squares, decay);
        }
        const at::Tensor average = momentum_ == 0 ? at::Tensor() : part_of(state.kept[0], shard);
        ops::follow(shard.master, shard.gradient, average, step.lr * setting.lr_scale, momentum_,
                    setting.weight_decay);
      }
    }
  }

  void append_shards(const std::string& prefix, bool first_rank, StateShards& shards) const override {
    for (const Moments& m : moments_) {
      if (!m.factored) {
        add_shard(shards, prefix + "exp_avg_sq/", *m.unit, *m.shard, m.squares);
        continue;
      }
      for (const auto& [name, moment] :
           {std::pair("exp_avg_sq_r/", m.row), std::pair("exp_avg_sq_c/", m.column)}) {
        shards.add({prefix + name + m.shard->name, "F32", moment.sizes().vec(),
                    Region::whole(moment.sizes().vec()), nullptr, !first_rank},
                   moment);
      }
    }
  }

 private:
  struct Moments {
    const shard::Unit* unit;
    const shard::Shard* shard;
    std::optional<ops::Factored> factored;
    at::Tensor row, column;  // of the whole tensor
    at::Tensor squares;      // of the shard, where not factored
  };

  /// Means of squares into rows and columns. Collective.
  void take_in_squares(double grad_scale, double decay, mesh::Mesh& mesh) {
    int64_t numbers = 0;
    for (const Moments& m : moments_) {
      if (m.factored) numbers += m.factored->row_numel + m.factored->column_numel;
    }
    at::Tensor sums = at::zeros({numbers}, at::kDouble);
    auto* at = sums.data_ptr<double>();
    for (const Moments& m : moments_) {
      if (!m.factored) continue;
      if (m.unit->replica() == 0) {
        ops::add_squares(*m.factored, m.shard->gradient, m.shard->interval().begin, grad_scale, at,
                         at + m.factored->row_numel);
      }
      at += m.factored->row_numel + m.factored->column_numel;
    }
    mesh.world().all_reduce(sums, "squares of rows and columns");
    int64_t first = 0;
    for (Moments& m : moments_) {
      if (!m.factored) continue;
      for (at::Tensor* moment : {&m.row, &m.column}) {
        const auto summed = static_cast<double>(numel_of(m.shard->shape) / moment->numel());
        const at::Tensor mean =
            (sums.narrow(0, first, moment->numel()) / summed + kLeastSquare).to(moment->scalar_type());
        moment->lerp_(mean.view(moment->sizes()).to(moment->device()), 1.0 - decay);
        first += moment->numel();
      }
    }
  }

  static int64_t numel_of(const std::vector<int64_t>& shape) {
    int64_t numel = 1;
    for (const int64_t size : shape) numel *= size;
    return numel;
  }

  double momentum_;
  std::vector<Moments> moments_;  // of each shard, unit after unit
};

}  // namespace

std::unique_ptr<UpdateRule> make_adafactor(const recipe::OptimizerRecipe& options) {
  return std::make_unique<Adafactor>(options);
}

}  // namespace tessera::optim
