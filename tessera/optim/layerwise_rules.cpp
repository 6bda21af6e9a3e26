// SPDX-License-Identifier: Apache-2.0
// Rules whose step for a matrix is as long as norms of the whole matrix say. One all-reduce of two numbers a
// matrix; all else is local.
#include <ATen/ATen.h>

#include <cmath>
#include <string>
#include <unordered_map>
#include <vector>

#include "tessera/ops/elementwise.h"
#include "tessera/ops/lamb.h"
#include "tessera/optim/sums_by_name.h"
#include "tessera/optim/update_rule.h"

namespace tessera::optim {
namespace {

struct Norms {
  double weights = 0, gradient = 0;
};

/// Of whole matrices, whatever boxes of them this rank's units hold.
class MatrixNorms {
 public:
  MatrixNorms() = default;
  /// Collective.
  MatrixNorms(std::span<const UnitState> units, mesh::Mesh& mesh) {
    std::vector<SummedTensor> matrices;
    over_matrices(units, [&](const UnitState&, const shard::Shard& shard) {
      matrices.push_back({shard.name, 2});
    });
    sums_ = SumsByName(matrices, mesh, "norms of tensors");
  }

  /// By name, of master values and gradients. Collective.
  std::unordered_map<std::string, Norms> now(std::span<const UnitState> units, mesh::Mesh& mesh) const {
    at::Tensor sums = sums_.zeros();
    auto* squares = sums.data_ptr<double>();
    over_matrices(units, [&](const UnitState& state, const shard::Shard& shard) {
      if (state.unit->replica() != 0) return;  // counted by the rank that holds the first copy
      double* at = squares + sums_.begin(shard.name);
      at[0] += at::dot(shard.master, shard.master).item<double>();
      at[1] += at::dot(shard.gradient, shard.gradient).item<double>();
    });
    sums_.sum(sums, mesh);
    squares = sums.data_ptr<double>();
    std::unordered_map<std::string, Norms> norms;
    over_matrices(units, [&](const UnitState&, const shard::Shard& shard) {
      const double* at = squares + sums_.begin(shard.name);
      norms[shard.name] = {std::sqrt(at[0]), std::sqrt(at[1])};
    });
    return norms;
  }

 private:
  template <typename Body>
  static void over_matrices(std::span<const UnitState> units, const Body& body) {
    for (const UnitState& state : units) {
      for (size_t i = 0; i < state.settings.size(); ++i)
        if (state.settings[i].matrix) body(state, state.unit->shards()[i]);
    }
  }

  SumsByName sums_;
};

/// Vectors' steps are AdamW's.
class Lamb : public UpdateRule {
 public:
  explicit Lamb(const recipe::OptimizerRecipe& options) : options_(options) {}
  std::vector<std::string> kept() const override { return {"exp_avg", "exp_avg_sq"}; }

  void prepare(std::span<const UnitState> units, mesh::Mesh& mesh) override {
    norms_ = MatrixNorms(units, mesh);
  }

  void step(std::span<const UnitState> units, const Step& step, mesh::Mesh& mesh) override {
    ops::LambOptions options{options_.beta1, options_.beta2, options_.epsilon, 0.0,
                             step.number,    step.grad_scale};
    for (const UnitState& state : units) {
      for (size_t i = 0; i < state.settings.size(); ++i) {
        const shard::Shard& shard = state.unit->shards()[i];
        options.weight_decay = state.settings[i].weight_decay;
        ops::lamb_direction(shard.gradient, shard.master, shard.gradient, part_of(state.kept[0], shard),
                            part_of(state.kept[1], shard), options);
      }
    }
    const auto norms = norms_.now(units, mesh);
    for (const UnitState& state : units) {
      for (size_t i = 0; i < state.settings.size(); ++i) {
        const shard::Shard& shard = state.unit->shards()[i];
        at::Tensor master = shard.master;
        double ratio = 1;
        if (state.settings[i].matrix) {
          const auto& [weights, directions] = norms.at(shard.name);
          ratio = ops::trust_ratio(weights, directions);
        }
        master.sub_(shard.gradient, step.lr * state.settings[i].lr_scale * ratio);
      }
    }
  }

 private:
  recipe::OptimizerRecipe options_;
  MatrixNorms norms_;
};

/// As timm's Lars: the ratio scales what enters the momentum. Vectors' steps are SGD's.
class Lars : public UpdateRule {
 public:
  explicit Lars(const recipe::OptimizerRecipe& options) : options_(options) {}
  std::vector<std::string> kept() const override {
    if (options_.momentum == 0) return {};
    return {"momentum_buffer"};
  }

  void prepare(std::span<const UnitState> units, mesh::Mesh& mesh) override {
    norms_ = MatrixNorms(units, mesh);
  }

  void step(std::span<const UnitState> units, const Step& step, mesh::Mesh& mesh) override {
    const auto norms = norms_.now(units, mesh);
    for (const UnitState& state : units) {
      for (size_t i = 0; i < state.settings.size(); ++i) {
        const shard::Shard& shard = state.unit->shards()[i];
        const Setting& setting = state.settings[i];
        double ratio = 1;
        if (setting.matrix) {
          const auto& [weights, gradient] = norms.at(shard.name);
          ratio = lars_ratio(weights, gradient * step.grad_scale, setting.weight_decay, options_.trust,
                             kLarsEpsilon);
        }
        ops::sgd(shard.master, shard.gradient,
                 state.kept.empty() ? at::Tensor() : part_of(state.kept[0], shard),
                 {step.lr * setting.lr_scale, options_.momentum, setting.weight_decay * ratio,
                  options_.nesterov, step.grad_scale * ratio});
      }
    }
  }

 private:
  static constexpr double kLarsEpsilon = 1e-8;
  recipe::OptimizerRecipe options_;
  MatrixNorms norms_;
};

}  // namespace

double lars_ratio(double weights, double gradient, double weight_decay, double trust, double epsilon) {
  if (!(weights > 0 && gradient > 0)) return 1;
  return trust * weights / (gradient + weight_decay * weights + epsilon);
}

std::unique_ptr<UpdateRule> make_lars(const recipe::OptimizerRecipe& options) {
  return std::make_unique<Lars>(options);
}

std::unique_ptr<UpdateRule> make_lamb(const recipe::OptimizerRecipe& options) {
  return std::make_unique<Lamb>(options);
}

}  // namespace tessera::optim
