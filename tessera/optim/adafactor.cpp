// SPDX-License-Identifier: Apache-2.0
// Adafactor as big_vision has it (scale_by_adafactor in its optax.py; Zhai et al., arXiv 2106.04560): of a
// matrix's squared gradients only the means of rows and columns are kept, and a momentum of the update. Ours
// is float32, big_vision's bfloat16. Squares are summed over the ranks; rows and columns are whole on every
// rank.
#include "tessera/ops/adafactor.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <unordered_map>
#include <vector>

#include "tessera/optim/sums_by_name.h"
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

  void prepare(std::span<const UnitState> units, mesh::Mesh& mesh) override {
    std::vector<SummedTensor> summed;
    for (const UnitState& state : units) {
      for (const shard::Shard& shard : state.unit->shards()) {
        ShardMoments entry{state.unit, &shard, nullptr, {}, false};
        if (const auto factored = ops::factored(shard.shape)) {
          const at::TensorOptions options = shard.master.options();
          const auto [at, added] =
              moments_.try_emplace(shard.name, Moments{*factored, at::zeros(factored->row_shape, options),
                                                       at::zeros(factored->column_shape, options)});
          entry.moments = &at->second;
          entry.first_of_tensor = added;
          summed.push_back({shard.name, factored->row_numel + factored->column_numel});
        } else {
          entry.squares = at::zeros_like(shard.master);
        }
        shard_moments_.push_back(std::move(entry));
      }
    }
    sums_ = SumsByName(summed, mesh, "squares of rows and columns");
  }

  void step(std::span<const UnitState> units, const Step& step, mesh::Mesh& mesh) override {
    const double decay =
        std::min(kMostDecay, 1.0 - std::pow(static_cast<double>(step.number), -kDecayExponent));
    take_in_squares(step.grad_scale, decay, mesh);
    size_t next = 0;
    for (const UnitState& state : units) {
      for (const Setting& setting : state.settings) {
        const ShardMoments& entry = shard_moments_[next++];
        const shard::Shard& shard = *entry.shard;
        if (entry.moments) {
          over_regions(shard, shard.gradient, [&](const Region& region, const at::Tensor& gradient) {
            ops::divide_by_root(entry.moments->factored, region, gradient, step.grad_scale,
                                entry.moments->row, entry.moments->column);
          });
        } else {
          ops::divide_by_root(shard.gradient, step.grad_scale, entry.squares, decay);
        }
        const at::Tensor average = momentum_ == 0 ? at::Tensor() : part_of(state.kept[0], shard);
        ops::follow(shard.master, shard.gradient, average, step.lr * setting.lr_scale, momentum_,
                    setting.weight_decay);
      }
    }
  }

  void append_shards(const std::string& prefix, StateShards& shards) const override {
    for (const ShardMoments& entry : shard_moments_) {
      const std::string& name = entry.shard->name;
      if (!entry.moments) {
        add_shard(shards, prefix + "exp_avg_sq/", *entry.unit, *entry.shard, entry.squares);
      } else if (entry.first_of_tensor) {
        for (const auto& [kind, moment] : {std::pair("exp_avg_sq_r/", entry.moments->row),
                                           std::pair("exp_avg_sq_c/", entry.moments->column)}) {
          shards.add_whole(prefix + kind + name, !sums_.is_lowest_holder(name), moment);
        }
      }
    }
  }

 private:
  struct Moments {  // of a whole tensor
    ops::Factored factored;
    at::Tensor row, column;
  };
  struct ShardMoments {  // of one shard of this rank
    const shard::Unit* unit;
    const shard::Shard* shard;
    Moments* moments;      // null: not factored
    at::Tensor squares;    // of the shard, where not factored
    bool first_of_tensor;  // of this rank's shards of a factored tensor
  };

  /// Means of squares into rows and columns. Collective.
  void take_in_squares(double grad_scale, double decay, mesh::Mesh& mesh) {
    at::Tensor sums = sums_.zeros();
    for (const ShardMoments& entry : shard_moments_) {
      if (!entry.moments || entry.unit->replica() != 0) continue;
      double* rows = sums.data_ptr<double>() + sums_.begin(entry.shard->name);
      over_regions(*entry.shard, entry.shard->gradient,
                   [&](const Region& region, const at::Tensor& gradient) {
                     ops::add_squares(entry.moments->factored, region, gradient, grad_scale, rows,
                                      rows + entry.moments->factored.row_numel);
                   });
    }
    sums_.sum(sums, mesh);
    for (auto& [name, moments] : moments_) {
      int64_t first = sums_.begin(name);
      for (at::Tensor* moment : {&moments.row, &moments.column}) {
        const auto summed = static_cast<double>(numel_of(moments.factored.shape) / moment->numel());
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
  std::unordered_map<std::string, Moments> moments_;  // by name, of the factored tensors
  std::vector<ShardMoments> shard_moments_;           // of each shard, unit after unit
  SumsByName sums_;                                   // of squares: rows, then columns
};

}  // namespace

std::unique_ptr<UpdateRule> make_adafactor(const recipe::OptimizerRecipe& options) {
  return std::make_unique<Adafactor>(options);
}

}  // namespace tessera::optim
