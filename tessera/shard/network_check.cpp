// SPDX-License-Identifier: Apache-2.0
// What a program may do to a network after it was wrapped, that would go on without a word and train
// something else: found before the next forward or backward.
#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/device/host_memory.h"
#include "tessera/shard/engine.h"
#include "tessera/shard/storage.h"

namespace tessera::shard {
namespace {

int64_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : static_cast<int64_t>(tensor._version());
}

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

/// Gradients of parameters() that are a part of the whole: norms of them, and whole vectors made of them, are
/// this rank's alone.
class ShardedModule::Engine::ShardGradient : public TouchTarget {
 public:
  void touch(std::span<const size_t> /*units*/) override {}
  bool may_touch() const override { return true; }
  bool may_write() const override { return true; }
  void check(const c10::OperatorHandle& operation) const override {
    static constexpr std::array<std::string_view, 8> kOfWholeTensors = {
        "aten::norm",        "aten::linalg_vector_norm",
        "aten::linalg_norm", "aten::frobenius_norm",
        "aten::dot",         "aten::vdot",
        "aten::cat",         "aten::_foreach_norm"};
    const std::string& name = operation.schema().name();
    if (std::find(kOfWholeTensors.begin(), kOfWholeTensors.end(), name) == kOfWholeTensors.end()) return;
    user_error(
        {.where = "shard.gradient",
         .problem = concat(name, " reads the gradient of a shard, which is this rank's part of a tensor"),
         .hint = "clip with sharded.clip_grad_norm(), take norms with grad_norm() or tensor_norms(); LBFGS "
                 "cannot work on shards; for this rank's part alone, read grad().clone()"});
  }
};

/// Gives a gradient to an optimizer.
at::Tensor ShardedModule::Engine::watched_gradient(const at::Tensor& gradient, size_t unit) {
  if (units_[unit]->shard_numel() == units_[unit]->padded_numel() || gradient.numel() == 0) return gradient;
  if (!shard_gradient_) shard_gradient_ = std::make_shared<ShardGradient>();
  gradient_entries_.emplace_back(gradient, shard_gradient_, 0);
  return with_touch_key(gradient);
}

/// set_data() on parameters() gave them other memory: its values are taken over. Returns whether it was so.
bool ShardedModule::Engine::adopt_data_of_shards() {
  const at::NoGradGuard no_grad;
  bool any = false;
  for (size_t i = 0; i < shards_.size(); ++i) {
    at::Tensor master = units_[shard_indices_[i].unit]->shards()[shard_indices_[i].shard].master;
    at::Tensor& values = shards_[i].values;
    if (storage_of(values) == storage_of(master)) continue;
    if (values.numel() != master.numel()) {
      user_error({.where = "shard.forward",
                  .problem = concat("set_data() gave the shard of ", shards_[i].name, " ", values.numel(),
                                    " elements"),
                  .expected = concat(master.numel(), " elements, this rank's part of the parameter")});
    }
    master.copy_(values.detach().reshape({-1}));
    values.set_data(master.variable_data());
    any = true;
  }
  return any;
}

/// Remembers the finished network as it is.
void ShardedModule::Engine::watch_network() {
  for (const auto& unit : units_) {
    for (size_t i = 0; i < unit->parameters().size(); ++i) {
      const at::Tensor& parameter = unit->parameters()[i].second;
      left_[parameter.unsafeGetTensorImpl()] = {
          storage_of(parameter), version_of(parameter), parameter.requires_grad(),
          !unit->comes_and_goes() && storage_of(parameter) != storage_of(unit->master())};
      if (!parameter.requires_grad()) continue;
      // Before the gradient is added to what is there. (impl::add_hook would exclude hooks of the program.)
      parameter.register_hook([self = weak_from_this()](const at::Tensor& /*gradient*/) {
        if (const auto engine = std::static_pointer_cast<Engine>(self.lock())) engine->enter_backward();
      });
    }
  }
  std::vector<at::Tensor> shards;
  for (const ParameterShard& shard : shards_) shards.push_back(shard.values);
  edits_.watch(std::move(shards));
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
  check_stream(function);
  if (std::this_thread::get_id() == thread_) return;
  user_error({.where = function,
              .problem = "called from a different thread than the one that made the ShardedModule",
              .hint = "give each thread its own network, Mesh and ShardedModule"});
}

/// Memory of units is reused in the order of one stream (buffer_pool.h).
void ShardedModule::Engine::check_stream(const char* function) const {
  if (!stream_ || device::current_stream_of(pool_.device()) == *stream_) return;
  user_error({.where = function,
              .problem = "called on a different stream of the GPU than the one that was current when the "
                         "ShardedModule was made",
              .hint = "make the stream current before wrapping, for the whole training"});
}

void ShardedModule::Engine::check_network() const {
  for (const auto& entry : module_->named_parameters()) {
    const at::Tensor& parameter = entry.value();
    if (!parameter.defined() || !at::isFloatingType(parameter.scalar_type())) continue;
    if (ignored_.count(parameter.unsafeGetTensorImpl()) > 0) continue;
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
