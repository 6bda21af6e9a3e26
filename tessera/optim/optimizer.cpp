// SPDX-License-Identifier: Apache-2.0
#include "tessera/optim/optimizer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <unordered_map>

#include "tessera/recipe/parameter_groups.h"

namespace tessera::optim {

Optimizer::Optimizer(const shard::ShardedModel& model, const recipe::OptimizerRecipe& options,
                     const std::vector<ModelParameter>& parameters, mesh::Mesh& mesh)
    : options_(options), mesh_(mesh), rule_(make_rule(options)) {
  const recipe::ParameterGroups groups(options);
  std::vector<std::string> names;
  std::unordered_map<std::string, const ModelParameter*> by_name;
  for (const ModelParameter& parameter : parameters) {
    names.push_back(parameter.name);
    by_name.emplace(parameter.name, &parameter);
  }
  static_cast<void>(groups.matches(names));  // each must
  for (const auto& unit : model.units()) {
    UnitState state;
    state.unit = unit.get();
    unit->allow_gradient_as_made(rule_->takes_gradients_as_made());
    for (const shard::Shard& shard : unit->shards()) {
      const ModelParameter& parameter = *by_name.at(shard.name);
      const recipe::Treatment treatment = groups.of(shard.name, parameter.matrix, parameter.units_after);
      state.settings.push_back({treatment.weight_decay, treatment.lr_scale, parameter.matrix});
      state.units_before = parameter.units_before;  // the same for all parameters of a unit
      state.units_after = parameter.units_after;
    }
    for (size_t i = 0; i < rule_->kept().size(); ++i) state.kept.push_back(unit->new_state());
    states_.push_back(std::move(state));
  }
  rule_->prepare(states_, mesh_);
}

void Optimizer::forget_frozen_gradients() const {
  for (const UnitState& state : states_) {
    for (size_t i = 0; i < state.settings.size(); ++i) {
      at::Tensor gradient = state.unit->shards()[i].gradient;
      if (state.settings[i].lr_scale == 0) gradient.zero_();
    }
  }
}

void Optimizer::step(double lr, double grad_scale) {
  RECORD_USER_SCOPE("tessera::optimizer");
  const at::NoGradGuard no_grad;
  rule_->step(states_, {lr, grad_scale, ++steps_}, mesh_);
}

bool Optimizer::can_queue() const {
  return rule_->queued() != nullptr && std::ranges::all_of(states_, [](const UnitState& state) {
           return state.unit->offloaded_bytes() == 0;
         });
}

std::vector<float> Optimizer::numbers_to_queue(double lr) const {
  return rule_->queued()->numbers({lr, 1, steps_ + 1});
}

void Optimizer::queue(const at::Tensor& numbers, const at::Tensor& grad_scale, const at::Tensor& use) const {
  RECORD_USER_SCOPE("tessera::optimizer");
  const at::NoGradGuard no_grad;
  rule_->queued()->queue(states_, numbers, grad_scale, use);
}

std::vector<at::Tensor> Optimizer::queued_writes() const {
  std::vector<at::Tensor> all;
  for (const UnitState& state : states_) {
    all.push_back(state.unit->master());
    all.insert(all.end(), state.kept.begin(), state.kept.end());
    if (const at::Tensor copy = state.unit->values_to_write(); copy.defined()) all.push_back(copy);
  }
  return all;
}

void Optimizer::copies_will_be_written() const {
  for (const UnitState& state : states_) state.unit->values_to_write();
}

void Optimizer::append_shards(StateShards& shards) const {
  const std::string prefix = options_.name + ".";
  const std::vector<std::string> names = rule_->kept();
  for (const UnitState& state : states_) {
    for (const shard::Shard& shard : state.unit->shards()) {
      for (size_t i = 0; i < names.size(); ++i) {
        add_shard(shards, prefix + names[i] + "/", *state.unit, shard, part_of(state.kept[i], shard));
      }
    }
  }
  rule_->append_shards(prefix, shards);
}

}  // namespace tessera::optim
