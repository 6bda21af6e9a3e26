// SPDX-License-Identifier: Apache-2.0
#include "tessera/shard/engine.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <sstream>

#include "tessera/base/checksum.h"
#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/shard/average.h"
#include "tessera/shard/backward_end.h"
#include "tessera/shard/tensor_memory.h"

namespace tessera::shard {
namespace {

constexpr size_t kOperationsCompared = 100'000;

std::string checksum_of(const std::string& text) {
  Checksum checksum;
  checksum.update(std::as_bytes(std::span(text)));
  return checksum.hex();
}

/// "'gather fc1' where rank 0 did 'gather fc2'": the first place where two lists differ.
std::string first_difference(const std::string& theirs, const std::string& ours) {
  std::istringstream a(theirs), b(ours);
  std::string mine, other;
  do {
    if (!std::getline(a, other)) other = "nothing more";
    if (!std::getline(b, mine)) mine = "nothing more";
  } while (other == mine);
  return concat("'", other, "' where rank 0 did '", mine, "'");
}

bool autograd_runs() { return torch::autograd::get_current_graph_task_id() != -1; }

}  // namespace

ShardedModule::Engine::Engine(mesh::Mesh& mesh, FullyShardOptions options)
    : mesh_(mesh),
      options_(std::move(options)),
      schedule_({.start =
                     [this](size_t group) {
                       for (const size_t unit : groups_[group].units) {
                         if (units_[unit]->start_gather()) record("gather", group);
                       }
                     },
                 .finish =
                     [this](size_t group) {
                       current_unit_ = groups_[group].name;
                       for (const size_t unit : groups_[group].units) units_[unit]->finish_gather();
                     },
                 .release =
                     [this](size_t group) {
                       for (const size_t unit : groups_[group].units) units_[unit]->release();
                     }},
                options_.prefetch,
                options_.units_in_flight > 0 ? options_.units_in_flight : options_.prefetch + 1),
      reductions_({.first_gradient = [this] { enter_backward(); },
                   .gradients_left =
                       [this](size_t watched) {
                         const size_t group = group_of_[watched_units_[watched]];
                         current_unit_ = groups_[group].name;
                         record("reduce", group);
                         if (groups_[group].gradients_awaited > 0 &&
                             --groups_[group].gradients_awaited == 0) {
                           schedule_.done_with(group);
                         }
                       },
                   .failed =
                       [this](size_t watched) {
                         current_unit_ = groups_[group_of_[watched_units_[watched]]].name;
                         with_error_context([] { throw; });
                       }}) {
  keep_tensor_memory();  // building and training free what is large, and malloc would keep much of it
  if (options_.prefetch < 0 || options_.units_in_flight < 0 || options_.bucket_bytes < 1) {
    user_error({.where = "shard.ShardedModule",
                .problem = concat("prefetch is ", options_.prefetch, ", units_in_flight ",
                                  options_.units_in_flight, " and bucket_bytes ", options_.bucket_bytes),
                .expected = "prefetch and units_in_flight of at least 0 and bucket_bytes of at least 1"});
  }
}

ShardedModule::Engine::~Engine() { show_no_gradients(false); }

/// Adds to a communication error where it struck and which ranks are silent; the first time only.
void ShardedModule::Engine::with_error_context(const std::function<void()>& work) {
  try {
    work();
  } catch (const CommError& error) {
    if (std::exchange(failed_, true)) throw;
    throw mesh_.explain(error, concat("step ", step_ + 1, ", unit ", current_unit_));
  }
}

void ShardedModule::Engine::record(const char* operation, size_t group) {
  // Forwards without a backward leave theirs; nobody compares that many.
  if (operations_.size() < kOperationsCompared)
    operations_.push_back(concat(operation, " ", groups_[group].name));
}

bool ShardedModule::Engine::may_touch() const {
  return forward_depth_ > 0 || parameters_readable_ || autograd_runs();
}

void ShardedModule::Engine::touch(std::span<const size_t> units) {
  const bool backward = autograd_runs();
  if (parameters_readable_ || (in_backward_ == backward && schedule_.read_last(units))) return;
  if (!backward) check_thread("shard.touch");
  with_error_context([&] {
    if (backward) {
      enter_backward();
    } else if (schedule_.pass() == Pass::kNone) {
      schedule_.begin(at::GradMode::is_enabled() ? Pass::kForward : Pass::kInference);
    }
    schedule_.touch(units);
  });
}

void ShardedModule::Engine::begin_forward() {
  check_thread("shard.forward");
  if (deferred_) std::rethrow_exception(std::exchange(deferred_, nullptr));
  if (forward_depth_ > 0) {
    ++forward_depth_;
    return;
  }
  if (in_backward_ && !autograd_runs()) {  // that backward failed half-way
    in_backward_ = accumulating_ = false;
    with_error_context([&] { reductions_.abandon(); });
    schedule_.end();
    operations_.clear();
  }
  check_network();
  bring_up_to_date();
  ++forward_depth_;
  with_error_context(
      [&] { schedule_.begin(at::GradMode::is_enabled() ? Pass::kForward : Pass::kInference); });
}

/// Gathered copies are thrown away if the shards have, or may have, changed.
void ShardedModule::Engine::bring_up_to_date() {
  const bool changed = edits_.changed();
  if (changed && accumulating_) {
    user_error({.where = "shard.forward",
                .problem = concat("parameters changed before micro-batch ", micro_batch_ + 1, " of ",
                                  micro_batches_),
                .expected = "the same parameters in all micro-batches of a step",
                .hint = "step the optimizer after the backward of the last micro-batch, or start again with "
                        "set_micro_batch(0, n)"});
  }
  if (changed || parameters_may_have_changed_) parameters_changed();
}

void ShardedModule::Engine::end_forward() {
  if (--forward_depth_ > 0 || in_backward_) return;
  try {
    with_error_context([&] { schedule_.end(); });
  } catch (...) {
    deferred_ = std::current_exception();
  }
}

void ShardedModule::Engine::enter_backward() {
  if (in_backward_) return;
  if (deferred_) std::rethrow_exception(std::exchange(deferred_, nullptr));
  check_edits_before_backward();
  in_backward_ = true;
  show_no_gradients(false);
  if (schedule_.pass() != Pass::kNone) schedule_.end();  // backward inside forward's body
  if (!accumulating_) begin_gradients();
  for (UnitGroup& group : groups_) group.gradients_awaited = 0;
  for (const size_t unit : watched_units_) ++groups_[group_of_[unit]].gradients_awaited;
  reductions_.begin(micro_batch_ + 1 == micro_batches_);
  schedule_.begin(Pass::kBackward);
  at_end_of_backward([self = weak_from_this()] {
    if (const auto engine = std::static_pointer_cast<Engine>(self.lock())) engine->leave_backward();
  });
}

void ShardedModule::Engine::leave_backward() {
  with_error_context([&] {
    const at::NoGradGuard no_grad;
    reductions_.finish();
    schedule_.end();
    in_backward_ = false;
    show_no_gradients(true);
    if (micro_batch_ + 1 < micro_batches_) return;
    hand_out_gradients();
    operations_.clear();
    accumulating_ = false;
    parameters_may_have_changed_ = true;  // a step may follow, and optimizers leave no trace
    ++step_;
  });
}

void ShardedModule::Engine::set_micro_batch(int64_t index, int64_t count) {
  if (index < 0 || index >= count) {
    user_error({.where = "shard.set_micro_batch",
                .problem = concat("the index is ", index, " and the count ", count),
                .expected = "0 <= index < count"});
  }
  if (index == 0) accumulating_ = false;
  micro_batch_ = index;
  micro_batches_ = count;
}

/// Gradients of a new step; where the optimizer's were not set to zero, they are added to.
void ShardedModule::Engine::begin_gradients() {
  accumulating_ = true;
  reductions_.forget_arrived();
  const at::NoGradGuard no_grad;
  std::vector<bool> keep(units_.size());
  for (size_t i = 0; i < shards_.size(); ++i) {
    if (shards_[i].trainable && shards_[i].values.grad().defined()) keep[shard_indices_[i].unit] = true;
  }
  for (size_t i = 0; i < shards_.size(); ++i) {
    const ShardIndex index = shard_indices_[i];
    if (!shards_[i].trainable || !keep[index.unit]) continue;
    units_[index.unit]->hold_gradient();
    at::Tensor held = units_[index.unit]->shards()[index.shard].gradient;
    const at::Tensor given = shards_[i].values.grad();
    if (!given.defined()) {
      held.zero_();
    } else if (given.data_ptr() != held.data_ptr()) {
      held.copy_(given);
    }
  }
  const double contributions =
      options_.gradients == Gradients::kMean ? static_cast<double>(mesh_.world_size() * micro_batches_) : 1.0;
  for (const size_t unit : watched_units_) units_[unit]->begin_gradient(keep[unit], contributions);
}

/// '1' for each watched parameter that got a gradient on this rank.
std::string ShardedModule::Engine::arrived_text() const {
  std::string text;
  for (size_t i = 0; i < watched_units_.size(); ++i) {
    for (const bool arrived : reductions_.arrived(i)) text += arrived ? '1' : '0';
  }
  return text;
}

/// Ranks compare what they did since the step began. Returns their arrived_text()s, one if all are equal.
std::vector<std::string> ShardedModule::Engine::agree_on_step() {
  mesh::Group& world = mesh_.world();
  const std::string arrived = arrived_text(), operations = join(operations_, "\n");
  const std::vector<std::string> sums =
      world.all_gather_text(checksum_of(arrived + "\n" + operations), "end of step");
  if (std::count(sums.begin(), sums.end(), sums[0]) == world.size()) return {arrived};
  const std::vector<std::string> everyones = world.all_gather_text(operations, "operations of the step");
  for (size_t rank = 1; rank < everyones.size(); ++rank) {
    if (everyones[rank] == everyones[0]) continue;
    throw CommError(
        concat("[shard.backward] units gathered and reduced in the same order on every rank: in step ",
               step_ + 1, " rank ", rank, " did ", first_difference(everyones[rank], everyones[0]),
               " (does the forward depend on the rank's own data?)"));
  }
  return mesh_.world().all_gather_text(arrived, "parameters in use");
}

/// Fills .grad of every parameter that some rank's loss depended on.
void ShardedModule::Engine::hand_out_gradients() {
  const std::vector<std::string> arrived = agree_on_step();
  std::vector<size_t> first(units_.size());  // character of each unit's first parameter
  for (size_t i = 0, at = 0; i < watched_units_.size(); ++i) {
    first[watched_units_[i]] = at;
    at += reductions_.arrived(i).size();
  }
  for (size_t i = 0; i < shards_.size(); ++i) {
    if (!shards_[i].trainable) continue;
    const ShardIndex index = shard_indices_[i];
    const size_t character = first[index.unit] + index.shard;
    const bool in_use = std::any_of(arrived.begin(), arrived.end(),
                                    [&](const std::string& text) { return text[character] == '1'; });
    at::Tensor& gradient = shards_[i].values.mutable_grad();
    if (!in_use && !gradient.defined()) continue;
    // As optimizers expect it: no view in autograd's eyes.
    const at::Tensor sum = units_[index.unit]->shards()[index.shard].gradient.variable_data();
    gradient = sum.to(shards_[i].values.scalar_type());
  }
}

void ShardedModule::Engine::parameters_changed() {
  parameters_may_have_changed_ = false;
  if (edits_.changed()) outdate_graphs();
  for (const auto& unit : units_) unit->parameters_changed();
  schedule_.forget();
  edits_.remember();
}

void ShardedModule::Engine::with_full_parameters(const std::function<void()>& body) {
  check_thread("shard.with_full_parameters");
  if (!accumulating_) bring_up_to_date();
  with_error_context([&] {
    for (const auto& unit : units_) unit->start_gather();
    for (const auto& unit : units_) unit->finish_gather();
  });
  parameters_readable_ = true;
  const auto close = [&] {
    parameters_readable_ = false;
    for (const auto& unit : units_) unit->release();
    schedule_.forget();
  };
  try {
    body();
  } catch (...) {
    close();
    throw;
  }
  close();
}

void ShardedModule::Engine::average_buffers() {
  std::vector<at::Tensor> buffers;
  for (const auto& entry : module_->named_buffers()) {
    if (entry.value().defined()) buffers.push_back(entry.value());
  }
  with_error_context([&] { average_over_ranks(buffers, mesh_.world()); });
}

void ShardedModule::Engine::sum_over_ranks(at::Tensor& values, const std::string& what) {
  with_error_context([&] { mesh_.world().all_reduce(values, what); });
}

}  // namespace tessera::shard
