// SPDX-License-Identifier: Apache-2.0
#include "tessera/library/optimizer_state.h"

#include <torch/optim.h>

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "tessera/base/error.h"
#include "tessera/library/layerwise.h"

namespace tessera::library {
namespace {

namespace optim = torch::optim;
using nlohmann::json;

template <typename State>
OptimizerSlots adam_slots(State& state) {
  return {{{"exp_avg", &state.exp_avg()},
           {"exp_avg_sq", &state.exp_avg_sq()},
           {"max_exp_avg_sq", &state.max_exp_avg_sq()}},
          &state.step()};
}

/// Calls visit(name, value) for the options of a group.
template <typename Visit>
void visit_options(optim::SGDOptions& options, const Visit& visit) {
  visit("lr", options.lr());
  visit("momentum", options.momentum());
  visit("dampening", options.dampening());
  visit("weight_decay", options.weight_decay());
  visit("nesterov", options.nesterov());
}
template <typename Options, typename Visit>
void visit_adam_options(Options& options, const Visit& visit) {
  visit("lr", options.lr());
  visit("beta1", std::get<0>(options.betas()));
  visit("beta2", std::get<1>(options.betas()));
  visit("eps", options.eps());
  visit("weight_decay", options.weight_decay());
}
template <typename Visit>
void visit_options(optim::AdamOptions& options, const Visit& visit) {
  visit_adam_options(options, visit);
  visit("amsgrad", options.amsgrad());
}
template <typename Visit>
void visit_options(optim::AdamWOptions& options, const Visit& visit) {
  visit_adam_options(options, visit);
  visit("amsgrad", options.amsgrad());
}
template <typename Visit>
void visit_options(optim::RMSpropOptions& options, const Visit& visit) {
  visit("lr", options.lr());
  visit("alpha", options.alpha());
  visit("eps", options.eps());
  visit("weight_decay", options.weight_decay());
  visit("momentum", options.momentum());
  visit("centered", options.centered());
}
template <typename Visit>
void visit_options(optim::AdagradOptions& options, const Visit& visit) {
  visit("lr", options.lr());
  visit("lr_decay", options.lr_decay());
  visit("weight_decay", options.weight_decay());
  visit("initial_accumulator_value", options.initial_accumulator_value());
  visit("eps", options.eps());
}
template <typename Visit>
void visit_options(LambOptions& options, const Visit& visit) {
  visit_adam_options(options, visit);
  visit("adapt", options.adapt());
}
template <typename Visit>
void visit_options(LarsOptions& options, const Visit& visit) {
  visit("lr", options.lr());
  visit("momentum", options.momentum());
  visit("weight_decay", options.weight_decay());
  visit("trust", options.trust());
  visit("adapt", options.adapt());
}

struct Kind {
  std::string name;
  std::function<bool(const optim::Optimizer&)> is;
  std::function<std::unique_ptr<optim::OptimizerParamState>()> fresh;
  std::function<void(optim::OptimizerOptions&, json&)> write;
  std::function<void(optim::OptimizerOptions&, const json&)> read;
};

template <typename Optimizer, typename State, typename Options>
Kind kind(std::string name) {
  return {
      std::move(name),
      [](const optim::Optimizer& optimizer) { return dynamic_cast<const Optimizer*>(&optimizer) != nullptr; },
      [] { return std::make_unique<State>(); },
      [](optim::OptimizerOptions& options, json& group) {
        visit_options(static_cast<Options&>(options),
                      [&](const char* key, const auto& value) { group[key] = value; });
      },
      [](optim::OptimizerOptions& options, const json& group) {
        visit_options(static_cast<Options&>(options), [&](const char* key, auto& value) {
          if (group.contains(key)) group.at(key).get_to(value);
        });
      }};
}

const Kind& known(const optim::Optimizer& optimizer) {
  static const std::vector<Kind> kinds = {
      kind<optim::SGD, optim::SGDParamState, optim::SGDOptions>("SGD"),
      kind<optim::Adam, optim::AdamParamState, optim::AdamOptions>("Adam"),
      kind<optim::AdamW, optim::AdamWParamState, optim::AdamWOptions>("AdamW"),
      kind<optim::RMSprop, optim::RMSpropParamState, optim::RMSpropOptions>("RMSprop"),
      kind<optim::Adagrad, optim::AdagradParamState, optim::AdagradOptions>("Adagrad"),
      kind<Lamb, LambParamState, LambOptions>("Lamb"),
      kind<Lars, LarsParamState, LarsOptions>("Lars")};
  for (const Kind& kind : kinds) {
    if (kind.is(optimizer)) return kind;
  }
  user_error({.where = "library.checkpoint",
              .problem = concat("cannot save the state of an optimizer of type ", typeid(optimizer).name()),
              .expected = "torch::optim::SGD, Adam, AdamW, RMSprop or Adagrad, or library::Lamb or Lars"});
}

/// The names of a group's parameters.
std::vector<std::string> names_of(const optim::OptimizerParamGroup& group,
                                  const shard::ShardedModule& sharded) {
  std::map<const void*, std::string> name_of;
  for (const auto& shard : sharded.shards()) name_of[shard.values.unsafeGetTensorImpl()] = shard.name;
  std::vector<std::string> names;
  for (const at::Tensor& parameter : group.params()) {
    const auto found = name_of.find(parameter.unsafeGetTensorImpl());
    names.push_back(found == name_of.end() ? "" : found->second);  // a tensor of the program
  }
  return names;
}

}  // namespace

OptimizerSlots slots_of(optim::OptimizerParamState& state) {
  if (auto* sgd = dynamic_cast<optim::SGDParamState*>(&state)) {
    return {{{"momentum_buffer", &sgd->momentum_buffer()}}, nullptr};
  }
  if (auto* adam = dynamic_cast<optim::AdamParamState*>(&state)) return adam_slots(*adam);
  if (auto* adamw = dynamic_cast<optim::AdamWParamState*>(&state)) return adam_slots(*adamw);
  if (auto* rmsprop = dynamic_cast<optim::RMSpropParamState*>(&state)) {
    return {{{"square_avg", &rmsprop->square_avg()},
             {"momentum_buffer", &rmsprop->momentum_buffer()},
             {"grad_avg", &rmsprop->grad_avg()}},
            &rmsprop->step()};
  }
  if (auto* lamb = dynamic_cast<LambParamState*>(&state)) {
    return {{{"exp_avg", &lamb->exp_avg()}, {"exp_avg_sq", &lamb->exp_avg_sq()}}, &lamb->step()};
  }
  if (auto* lars = dynamic_cast<LarsParamState*>(&state)) {
    return {{{"momentum_buffer", &lars->momentum_buffer()}}, nullptr};
  }
  auto& adagrad = dynamic_cast<optim::AdagradParamState&>(state);
  return {{{"sum", &adagrad.sum()}}, &adagrad.step()};
}

std::string kind_of(const optim::Optimizer& optimizer) { return known(optimizer).name; }

std::unique_ptr<optim::OptimizerParamState> fresh_state(const optim::Optimizer& optimizer) {
  return known(optimizer).fresh();
}

json groups_of(const optim::Optimizer& optimizer, const shard::ShardedModule& sharded) {
  json groups = json::array();
  for (const auto& group : optimizer.param_groups()) {
    json saved = {{"parameters", names_of(group, sharded)}};
    // options() has no const form.
    known(optimizer).write(const_cast<optim::OptimizerParamGroup&>(group).options(), saved);
    groups.push_back(std::move(saved));
  }
  return groups;
}

void restore_groups(const json& saved, optim::Optimizer& optimizer, const shard::ShardedModule& sharded) {
  auto& groups = optimizer.param_groups();
  for (size_t i = 0; i < std::max(groups.size(), saved.size()); ++i) {
    const auto ours = i < groups.size() ? names_of(groups[i], sharded) : std::vector<std::string>{};
    const auto theirs = i < saved.size() ? saved[i].at("parameters").get<std::vector<std::string>>()
                                         : std::vector<std::string>{};
    if (ours == theirs) continue;
    user_error({.where = "library.load_module",
                .problem = concat("parameter group ", i, " of the optimizer has ", ours.size(),
                                  " parameters, in the checkpoint ", theirs.size(), ", or different ones"),
                .expected = "the same groups as when it was saved",
                .hint = "load without the optimizer to begin with fresh state"});
  }
  for (size_t i = 0; i < groups.size(); ++i) known(optimizer).read(groups[i].options(), saved[i]);
}

}  // namespace tessera::library
