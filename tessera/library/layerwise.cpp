// SPDX-License-Identifier: Apache-2.0
#include "tessera/library/layerwise.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <unordered_map>

#include "tessera/base/error.h"
#include "tessera/ops/lamb.h"
#include "tessera/optim/update_rule.h"

namespace tessera::library {
namespace {

using torch::optim::OptimizerParamGroup;
using torch::optim::OptimizerParamState;
using Groups = std::vector<OptimizerParamGroup>;

/// The group of each of sharded.parameters(); -1 where none has it.
std::vector<int64_t> group_of_each(const shard::ShardedModule& sharded, const Groups& groups) {
  std::unordered_map<const void*, size_t> index;
  const std::vector<at::Tensor> parameters = sharded.parameters();
  for (size_t i = 0; i < parameters.size(); ++i) index[parameters[i].unsafeGetTensorImpl()] = i;
  std::vector<int64_t> group_of(parameters.size(), -1);
  for (size_t group = 0; group < groups.size(); ++group) {
    for (const at::Tensor& tensor : groups[group].params()) {
      const auto found = index.find(tensor.unsafeGetTensorImpl());
      if (found == index.end()) {
        user_error({.where = "library.layerwise",
                    .problem = concat("parameter group ", group, " has a tensor of ", tensor.numel(),
                                      " elements that is not one of ShardedModule::parameters()"),
                    .expected = "the tensors of parameters() themselves"});
      }
      group_of[found->second] = static_cast<int64_t>(group);
    }
  }
  return group_of;
}

/// A parameter that has a gradient, and what becomes of it in this step.
struct Update {
  at::Tensor parameter, gradient;
  size_t group = 0;
  at::Tensor direction;  // what the ratio scales
};

/// One for each of sharded.parameters(); those without a gradient are left undefined.
std::vector<Update> updates_of(const shard::ShardedModule& sharded, const Groups& groups) {
  const std::vector<int64_t> group_of = group_of_each(sharded, groups);
  std::vector<Update> updates;
  for (const at::Tensor& parameter : sharded.parameters()) {
    const int64_t group = group_of[updates.size()];
    updates.emplace_back();
    if (group < 0 || !parameter.grad().defined()) continue;
    updates.back() = {parameter, parameter.grad(), static_cast<size_t>(group), {}};
  }
  return updates;
}

struct Norms {
  std::vector<double> weights, others;
};

/// Norms of whole tensors: of each update's parameter, and of another part of it. Collective.
Norms norms(shard::ShardedModule& sharded, const std::vector<Update>& updates, at::Tensor Update::*part) {
  if (updates.empty()) return {};
  std::vector<at::Tensor> local;
  for (const Update& update : updates) local.push_back(update.parameter);
  for (const Update& update : updates) local.push_back(update.*part);
  const at::Tensor found = sharded.tensor_norms(local);
  const double* first = found.const_data_ptr<double>();
  const double* middle = first + updates.size();
  return {{first, middle}, {middle, middle + updates.size()}};
}

template <typename State>
State& state_of(torch::optim::Optimizer& optimizer, const at::Tensor& parameter) {
  auto& state = optimizer.state()[parameter.unsafeGetTensorImpl()];
  if (!state) state = std::make_unique<State>();
  return static_cast<State&>(*state);
}

at::Tensor loss_of(const torch::optim::Optimizer::LossClosure& closure) {
  if (!closure) return {};
  const at::AutoGradMode with_gradients(true);
  return closure();
}

/// u of the formula, after the moments took in the gradient.
at::Tensor lamb_direction(const Update& update, LambParamState& state, const LambOptions& options) {
  if (!state.exp_avg().defined()) {
    state.exp_avg(at::zeros_like(update.parameter)).exp_avg_sq(at::zeros_like(update.parameter));
  }
  state.step(state.step() + 1);
  const auto [beta1, beta2] = options.betas();
  at::Tensor direction = at::empty_like(update.parameter);
  ops::lamb_direction(direction, update.parameter, update.gradient, state.exp_avg(), state.exp_avg_sq(),
                      {beta1, beta2, options.eps(), options.weight_decay(), state.step(), 1.0});
  return direction;
}

}  // namespace

Lamb::Lamb(shard::ShardedModule& sharded, const LambOptions& options)
    : Lamb(sharded, {OptimizerParamGroup(sharded.parameters())}, options) {}

Lamb::Lamb(shard::ShardedModule& sharded, const Groups& groups, const LambOptions& defaults)
    : Optimizer(groups, std::make_unique<LambOptions>(defaults)), sharded_(sharded) {
  group_of_each(sharded_, param_groups());
}

torch::Tensor Lamb::step(LossClosure closure) {
  const at::NoGradGuard no_grad;
  const at::Tensor loss = loss_of(closure);
  const auto options_of = [&](const Update& update) -> const LambOptions& {
    return static_cast<const LambOptions&>(param_groups()[update.group].options());
  };
  std::vector<Update> updates = updates_of(sharded_, param_groups());
  for (Update& update : updates) {
    if (!update.parameter.defined()) continue;
    update.direction =
        lamb_direction(update, state_of<LambParamState>(*this, update.parameter), options_of(update));
  }
  const auto [weights, directions] = norms(sharded_, updates, &Update::direction);
  for (size_t i = 0; i < updates.size(); ++i) {
    Update& update = updates[i];
    if (!update.parameter.defined()) continue;
    const LambOptions& options = options_of(update);
    const double ratio = options.adapt() ? ops::trust_ratio(weights[i], directions[i]) : 1.0;
    update.parameter.sub_(update.direction, options.lr() * ratio);
  }
  return loss;
}

Lars::Lars(shard::ShardedModule& sharded, const LarsOptions& options)
    : Lars(sharded, {OptimizerParamGroup(sharded.parameters())}, options) {}

Lars::Lars(shard::ShardedModule& sharded, const Groups& groups, const LarsOptions& defaults)
    : Optimizer(groups, std::make_unique<LarsOptions>(defaults)), sharded_(sharded) {
  group_of_each(sharded_, param_groups());
}

torch::Tensor Lars::step(LossClosure closure) {
  const at::NoGradGuard no_grad;
  const at::Tensor loss = loss_of(closure);
  std::vector<Update> updates = updates_of(sharded_, param_groups());
  const auto [weights, gradients] = norms(sharded_, updates, &Update::gradient);
  for (size_t i = 0; i < updates.size(); ++i) {
    Update& update = updates[i];
    if (!update.parameter.defined()) continue;
    const auto& options = static_cast<const LarsOptions&>(param_groups()[update.group].options());
    const double decay = options.weight_decay();
    const double ratio =
        options.adapt() ? optim::lars_ratio(weights[i], gradients[i], decay, options.trust()) : 1.0;
    auto& state = state_of<LarsParamState>(*this, update.parameter);
    if (!state.momentum_buffer().defined()) state.momentum_buffer(at::zeros_like(update.parameter));
    const at::Tensor descent = decay == 0 ? update.gradient : update.gradient + decay * update.parameter;
    at::Tensor velocity = state.momentum_buffer();
    velocity.mul_(options.momentum()).add_(descent, options.lr() * ratio);
    update.parameter.sub_(velocity);
  }
  return loss;
}

}  // namespace tessera::library
