// SPDX-License-Identifier: Apache-2.0
// What a program may do to a network after it was wrapped, that would go on without a word and train
// something else: found before the next forward or backward.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include "tessera/base/error.h"
#include "tessera/shard/engine.h"
#include "tessera/shard/storage.h"

namespace tessera::shard {
namespace {

int64_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : static_cast<int64_t>(tensor._version());
}

/// Calls back when a leaf's gradient comes, before it is added to what is there.
class GradientComes : public torch::autograd::FunctionPreHook {
 public:
  explicit GradientComes(std::function<void()> callback) : callback_(std::move(callback)) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& gradients) override {
    callback_();
    return gradients;
  }

 private:
  std::function<void()> callback_;
};

}  // namespace

/// The gradient that parameters of the network seem to have: who reads it is told where gradients are.
class ShardedModule::Engine::NoGradient : public TouchTarget {
 public:
  void touch(std::span<const size_t> /*units*/) override {
    user_error({.where = "shard.gradient",
                .problem = "the network's own parameters have no gradients",
                .expected = "gradients to be read from ShardedModule::parameters()",
                .hint = "make the optimizer over sharded.parameters(), after wrapping; clip with "
                        "sharded.clip_grad_norm()"});
  }
  bool may_touch() const override { return true; }
};

/// Remembers the finished network as it is.
void ShardedModule::Engine::watch_network() {
  for (const auto& unit : units_) {
    for (size_t i = 0; i < unit->parameters().size(); ++i) {
      const at::Tensor& parameter = unit->parameters()[i].second;
      left_[parameter.unsafeGetTensorImpl()] = {
          storage_of(parameter), version_of(parameter), parameter.requires_grad(),
          !unit->comes_and_goes() && storage_of(parameter) != storage_of(unit->master())};
      if (!parameter.requires_grad()) continue;
      torch::autograd::impl::add_hook(parameter, std::make_unique<GradientComes>([self = weak_from_this()] {
                                        if (const auto engine = std::static_pointer_cast<Engine>(self.lock()))
                                          engine->enter_backward();
                                      }));
    }
  }
  for (const ParameterShard& shard : shards_) edits_.watch(shard.values);
  edits_.remember();
  make_no_gradient();
}

/// What autograd saved of the parameters so far is another value's: differentiating it is LibTorch's error.
void ShardedModule::Engine::outdate_graphs() {
  for (const auto& unit : units_) {
    for (const auto& [name, parameter] : unit->parameters()) {
      if (parameter.is_inference()) continue;
      const int64_t before = version_of(parameter);
      parameter.unsafeGetTensorImpl()->bump_version();
      left_[parameter.unsafeGetTensorImpl()].version += version_of(parameter) - before;
    }
  }
}

void ShardedModule::Engine::make_no_gradient() {
  no_gradient_owner_ = std::make_shared<NoGradient>();
  no_gradient_ = at::zeros({1});
  set_touch_key(no_gradient_);
  entries_.emplace_back(no_gradient_, no_gradient_owner_, kNoMemory);
}

void ShardedModule::Engine::show_no_gradients(bool show) {
  if (!no_gradient_.defined()) return;
  for (const size_t unit : watched_units_) {
    for (const auto& [name, parameter] : units_[unit]->parameters()) {
      at::Tensor& gradient = parameter.mutable_grad();
      if (show && !gradient.defined()) gradient = no_gradient_;
      if (!show && gradient.is_same(no_gradient_)) gradient.reset();
    }
  }
}

void ShardedModule::Engine::check_thread(const char* function) const {
  if (std::this_thread::get_id() == thread_) return;
  user_error({.where = function,
              .problem = "called from a different thread than the one that made the ShardedModule",
              .hint = "give each thread its own network, Mesh and ShardedModule"});
}

void ShardedModule::Engine::check_network() const {
  for (const auto& entry : module_->named_parameters()) {
    const at::Tensor& parameter = entry.value();
    if (!parameter.defined() || !at::isFloatingType(parameter.scalar_type())) continue;
    const auto found = left_.find(parameter.unsafeGetTensorImpl());
    if (found == left_.end()) {
      user_error({.where = "shard.forward",
                  .problem = concat("parameter ", entry.key(), " was registered or replaced after wrapping"),
                  .hint = "build the whole network first"});
    }
    const Left& left = found->second;
    if (storage_of(parameter) != left.storage) {
      user_error({.where = "shard.forward",
                  .problem = concat("parameter ", entry.key(), " was given other memory after wrapping"),
                  .hint = "convert and load before wrapping, or use FullyShardOptions::precision and "
                          "library::load_module"});
    }
    if (left.is_copy && version_of(parameter) != left.version) {
      user_error({.where = "shard.forward",
                  .problem = concat("parameter ", entry.key(),
                                    ", a copy in the compute dtype, was changed in place"),
                  .hint = "change ShardedModule::parameters() instead"});
    }
    if (parameter.requires_grad() && !left.trainable) {
      user_error({.where = "shard.forward",
                  .problem = concat("parameter ", entry.key(),
                                    " requires a gradient, but was frozen when it was wrapped"),
                  .hint = "unfreeze it before wrapping"});
    }
  }
}

void ShardedModule::Engine::check_edits_before_backward() const {
  if (!edits_.changed()) return;
  user_error(
      {.where = "shard.backward",
       .problem = "parameters changed between forward and backward",
       .hint =
           "call optimizer.step() after backward, and run every forward inside ShardedModule::forward()"});
}

}  // namespace tessera::shard
