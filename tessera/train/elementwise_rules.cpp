// SPDX-License-Identifier: Apache-2.0
// Rules that treat every number of a parameter alone: any split of the state gives the same bits.
#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/ops/adamw.h"
#include "tessera/ops/elementwise.h"
#include "tessera/train/update_rule.h"

namespace tessera::train {

at::Tensor part_of(const at::Tensor& flat, const shard::Piece& piece) {
  return flat.narrow(0, piece.unit_offset, piece.end - piece.begin);
}

void add_slice(StateSlices& slices, std::string_view prefix, const shard::Unit& unit,
               const shard::Piece& piece, const at::Tensor& part) {
  TESSERA_CHECK(part.scalar_type() == at::kFloat, piece.name);
  slices.add(
      {concat(prefix, piece.name), "F32", piece.shape, piece.begin, piece.end, nullptr, unit.replica() != 0},
      part);
}

void over_runs(std::span<const UnitState> units, const std::function<void(const Run&)>& body) {
  for (const UnitState& state : units) {
    const auto& pieces = state.unit->pieces();
    const auto end_of = [&](size_t i) { return pieces[i].unit_offset + pieces[i].master.numel(); };
    // Neighbours in the list need not be neighbours in memory (Unit::offset).
    const auto joins = [&](size_t i, size_t first) {
      return state.settings[i] == state.settings[first] && pieces[i].unit_offset == end_of(i - 1);
    };
    for (size_t first = 0; first < pieces.size();) {
      size_t last = first;
      while (last + 1 < pieces.size() && joins(last + 1, first)) ++last;
      const int64_t begin = pieces[first].unit_offset, end = end_of(last);
      const auto part = [&](const at::Tensor& flat) { return flat.narrow(0, begin, end - begin); };
      if (end > begin) {
        Run run{part(state.unit->master()), part(state.unit->gradient()), {}, state.settings[first], begin};
        for (const at::Tensor& kept : state.kept) run.kept.push_back(part(kept));
        body(run);
      }
      first = last + 1;
    }
  }
}

namespace {

/// AdamW, and Adam, whose decay is a part of the gradient.
class Adam : public UpdateRule {
 public:
  Adam(const recipe::OptimizerRecipe& options, bool coupled) : options_(options), coupled_(coupled) {}
  std::vector<std::string> kept() const override { return {"exp_avg", "exp_avg_sq"}; }
  bool takes_gradients_as_made() const override { return true; }
  void step(std::span<const UnitState> units, const Step& step, mesh::Mesh&) override {
    for (const UnitState& state : units) {
      const at::Tensor copy = state.unit->values_to_write();
      over_runs({&state, 1}, [&](const Run& run) {
        ops::adamw(run.values, run.gradient, run.kept[0], run.kept[1],
                   {step.lr * run.setting.lr_scale, options_.beta1, options_.beta2, options_.epsilon,
                    run.setting.weight_decay, step.number, step.grad_scale, coupled_},
                   copy.defined() ? copy.narrow(0, run.begin, run.values.numel()) : copy);
      });
    }
  }

 private:
  recipe::OptimizerRecipe options_;
  bool coupled_;
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

}  // namespace tessera::train
