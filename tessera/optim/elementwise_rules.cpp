// SPDX-License-Identifier: Apache-2.0
// Rules that treat every number of a parameter alone: any split of the state gives the same bits.
#include <algorithm>
#include <numeric>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/ops/adamw.h"
#include "tessera/ops/elementwise.h"
#include "tessera/optim/update_rule.h"

namespace tessera::optim {

at::Tensor part_of(const at::Tensor& flat, const shard::Shard& shard) {
  return flat.narrow(0, shard.unit_offset, shard.master.numel());
}

void add_shard(StateShards& shards, std::string_view prefix, const shard::Unit& unit,
               const shard::Shard& shard, const at::Tensor& part) {
  TESSERA_CHECK(part.scalar_type() == at::kFloat, shard.name);
  over_regions(shard, part, [&](const Region& region, const at::Tensor& memory) {
    shards.add(concat(prefix, shard.name), shard.shape, region, unit.replica() != 0, memory);
  });
}

std::vector<Stretch> stretches_of(const UnitState& unit) {
  const auto& shards = unit.unit->shards();
  // Neighbours in the list need not be neighbours in memory.
  std::vector<size_t> order(shards.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, {}, [&](size_t i) { return shards[i].unit_offset; });
  std::vector<Stretch> found;
  for (const size_t i : order) {
    const int64_t begin = shards[i].unit_offset, end = begin + shards[i].master.numel();
    if (end == begin) continue;
    if (!found.empty() && found.back().end == begin && found.back().setting == unit.settings[i]) {
      found.back().end = end;
    } else {
      found.push_back({begin, end, unit.settings[i]});
    }
  }
  return found;
}

void over_runs(std::span<const UnitState> units, const std::function<void(const Run&)>& body) {
  for (const UnitState& state : units) {
    for (const Stretch& stretch : stretches_of(state)) {
      const auto part = [&](const at::Tensor& flat) {
        return flat.narrow(0, stretch.begin, stretch.end - stretch.begin);
      };
      Run run{part(state.unit->master()), part(state.unit->gradient()), {}, stretch.setting, stretch.begin};
      for (const at::Tensor& kept : state.kept) run.kept.push_back(part(kept));
      body(run);
    }
  }
}

namespace {

/// AdamW, and Adam, whose decay is a part of the gradient.
class Adam : public UpdateRule, public QueuedRule {
 public:
  Adam(const recipe::OptimizerRecipe& options, bool coupled) : options_(options), coupled_(coupled) {}
  std::vector<std::string> kept() const override { return {"exp_avg", "exp_avg_sq"}; }
  bool takes_gradients_as_made() const override { return true; }
  void step(std::span<const UnitState> units, const Step& step, mesh::Mesh&) override {
    for (const UnitState& state : units) {
      const at::Tensor copy = state.unit->values_to_write();
      over_runs({&state, 1}, [&](const Run& run) {
        ops::adamw(run.values, run.gradient, run.kept[0], run.kept[1], options_of(step, run.setting),
                   copy.defined() ? copy.narrow(0, run.begin, run.values.numel()) : copy);
      });
    }
  }

  void prepare(std::span<const UnitState> units, mesh::Mesh& /*mesh*/) override {
    for (const UnitState& state : units) {
      std::vector<device::AdamwRun> runs;
      for (const Stretch& stretch : stretches_of(state))
        runs.push_back({stretch.begin, stretch.end, row_of(stretch.setting)});
      runs_.emplace_back(std::move(runs), coupled_, state.unit->master().device());
    }
  }
  const QueuedRule* queued() const override { return this; }
  std::vector<float> numbers(const Step& step) const override {
    std::vector<float> all;
    for (const Setting& setting : rows_) {
      const auto row = ops::adamw_coefficients(options_of(step, setting));
      all.insert(all.end(), row.begin(), row.end());
    }
    return all;
  }
  void queue(std::span<const UnitState> units, const at::Tensor& numbers, const at::Tensor& grad_scale,
             const at::Tensor& use) const override {
    const ops::AdamwOnDevice given{numbers.view({-1, ops::kAdamwCoefficients}), grad_scale, use};
    for (size_t i = 0; i < units.size(); ++i) {
      const UnitState& state = units[i];
      ops::adamw(state.unit->master(), state.unit->gradient(), state.kept[0], state.kept[1], runs_[i], given,
                 state.unit->values_to_write());
    }
  }

 private:
  ops::AdamwOptions options_of(const Step& step, const Setting& setting) const {
    return {step.lr * setting.lr_scale, options_.beta1, options_.beta2,  options_.epsilon,
            setting.weight_decay,       step.number,    step.grad_scale, coupled_};
  }
  /// Parameters that are treated alike share a row, wherever they are.
  int64_t row_of(const Setting& setting) {
    const auto found = std::ranges::find(rows_, setting);
    if (found != rows_.end()) return found - rows_.begin();
    rows_.push_back(setting);
    return static_cast<int64_t>(rows_.size()) - 1;
  }

  recipe::OptimizerRecipe options_;
  bool coupled_;
  std::vector<Setting> rows_;         // of the table of coefficients
  std::vector<ops::AdamwRuns> runs_;  // by unit
};

class Sgd : public UpdateRule {
 public:
  explicit Sgd(const recipe::OptimizerRecipe& options) : options_(options) {}
  std::vector<std::string> kept() const override {
    if (options_.momentum == 0) return {};
    return {"momentum_buffer"};
  }
  void step(std::span<const UnitState> units, const Step& step, mesh::Mesh&) override {
    over_runs(units, [&](const Run& run) {
      ops::sgd(run.values, run.gradient, run.kept.empty() ? at::Tensor() : run.kept[0],
               {step.lr * run.setting.lr_scale, options_.momentum, run.setting.weight_decay,
                options_.nesterov, step.grad_scale});
    });
  }

 private:
  recipe::OptimizerRecipe options_;
};

class Lion : public UpdateRule {
 public:
  explicit Lion(const recipe::OptimizerRecipe& options) : options_(options) {}
  std::vector<std::string> kept() const override { return {"exp_avg"}; }
  void step(std::span<const UnitState> units, const Step& step, mesh::Mesh&) override {
    over_runs(units, [&](const Run& run) {
      ops::lion(run.values, run.gradient, run.kept[0],
                {step.lr * run.setting.lr_scale, options_.beta1, options_.beta2, run.setting.weight_decay,
                 step.grad_scale});
    });
  }

 private:
  recipe::OptimizerRecipe options_;
};

}  // namespace

std::unique_ptr<UpdateRule> make_rule(const recipe::OptimizerRecipe& options) {
  if (options.name == "adamw" || options.name == "adam") {
    return std::make_unique<Adam>(options, options.name == "adam");
  }
  if (options.name == "sgd") return std::make_unique<Sgd>(options);
  if (options.name == "lion") return std::make_unique<Lion>(options);
  if (options.name == "lamb") return make_lamb(options);
  if (options.name == "lars") return make_lars(options);
  if (options.name == "adafactor") return make_adafactor(options);
  TESSERA_CHECK(options.name == "muon", "optimizer ", options.name);
  return make_muon(options);
}

}  // namespace tessera::optim
