// SPDX-License-Identifier: Apache-2.0
#include "tessera/shard/engine.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <sstream>
#include <string_view>

#include "tessera/base/checksum.h"
#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/mesh/gloo_fault.h"
#include "tessera/shard/average.h"
#include "tessera/shard/backward_end.h"
#include "tessera/shard/tensor_memory.h"

namespace tessera::shard {
namespace {

// Forwards without a backward leave theirs; nobody compares that many.
constexpr size_t kGathersCompared = 100'000;

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

std::string own_data_hint() {
  return concat("every rank has to read the same ZeRO-3 units in the same order: ", mesh::kOwnDataRemedy);
}

/// While one lives, this thread queues on a GPU's `stream`, if there is one. What the stream that was current
/// gets afterwards begins behind that. At the end of a pass autograd's thread has the stream of backward's
/// caller, or a different one where no gradient of a leaf was made outside of recomputed pieces.
class OnStream {
 public:
  explicit OnStream(const std::optional<c10::Stream>& stream) {
    if (stream) guard_.emplace(*stream);
  }
  ~OnStream() {
    if (!guard_ || guard_->original_stream() == guard_->current_stream()) return;
    try {
      c10::Event done(guard_->current_stream().device_type());
      done.record(guard_->current_stream());
      done.block(guard_->original_stream());
    } catch (const std::exception&) {  // the device has failed, which its user hears of elsewhere
    }
  }
  OnStream(const OnStream&) = delete;
  OnStream& operator=(const OnStream&) = delete;

 private:
  std::optional<c10::StreamGuard> guard_;
};

bool autograd_runs() { return torch::autograd::get_current_graph_task_id() != -1; }

}  // namespace

ShardedModule::Engine::Engine(mesh::Mesh& mesh, FullyShardOptions options)
    : mesh_(mesh),
      options_(std::move(options)),
      schedule_({.start =
                     [this](size_t group) {
                       for (const size_t unit : groups_[group].units) {
                         if (!units_[unit]->start_gather() || gathers_.size() >= kGathersCompared) continue;
                         gathers_.push_back("gather " + groups_[group].name);
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
                     },
                 .reads = [this](size_t group) { unit_is_read(group); }},
                options_.prefetch,
                options_.units_in_flight > 0 ? options_.units_in_flight : options_.prefetch + 1),
      reductions_({.first_gradient = [this] { enter_backward(); },
                   .gradients_left =
                       [this](size_t watched) {
                         const size_t group = group_of_[watched_units_[watched]];
                         current_unit_ = groups_[group].name;
                         if (groups_[group].gradients_awaited > 0 &&
                             --groups_[group].gradients_awaited == 0) {
                           reduced_groups_.push_back(group);
                         }
                       },
                   .failed =
                       [this](size_t watched) {
                         current_unit_ = groups_[group_of_[watched_units_[watched]]].name;
                         with_error_context([] { throw; });
                       },
                   .agree_on_late = [this](const std::vector<bool>& late) { return agree_on_step(late); }}),
      watcher_(mesh.watch_collectives([this](const std::string& name) { another_collective(name); })) {
  keep_tensor_memory();  // building and training free what is large, and malloc would keep much of it
  if (options_.prefetch < 0 || options_.units_in_flight < 0 || options_.bucket_bytes < 1) {
    user_error({.where = "shard.ShardedModule",
                .problem = concat("prefetch is ", options_.prefetch, ", units_in_flight ",
                                  options_.units_in_flight, " and bucket_bytes ", options_.bucket_bytes),
                .expected = "prefetch and units_in_flight of at least 0 and bucket_bytes of at least 1"});
  }
}

/// Adds to a communication error where it struck and which ranks are silent; the first time only.
void ShardedModule::Engine::with_error_context(const std::function<void()>& work) {
  const bool outer = std::exchange(communicates_, true);
  try {
    work();
    communicates_ = outer;
  } catch (const CommError& error) {
    communicates_ = outer;
    if (std::exchange(failed_, true)) throw;
    const CommError explained = mesh_.explain(error, concat("step ", step_ + 1, ", unit ", current_unit_));
    const bool differ = std::string_view(error.what()).find(mesh::kDifferentOperations) != std::string::npos;
    if (!differ || !schedule_.any_comes_and_goes()) throw explained;
    throw CommError(concat("[shard.forward] ranks gather different units: rank ", mesh_.rank(), " reads ",
                           current_unit_, " in step ", step_ + 1, "; ", own_data_hint(), "; ",
                           explained.what()));
  } catch (...) {
    communicates_ = outer;
    throw;
  }
}

/// A unit that comes and goes is read after another one. All ranks are here between the same collectives.
void ShardedModule::Engine::unit_is_read(size_t group) {
  if (!in_backward_) return;
  reductions_.order().event(groups_[group].name);
  for (const size_t reduced : std::exchange(reduced_groups_, {})) schedule_.done_with(reduced);
}

/// A collective of the program, or of another sharded module: what this rank does around it must be what the
/// others do around theirs.
void ShardedModule::Engine::another_collective(const std::string& name) {
  if (communicates_ || Reductions::communicates()) return;
  if (in_backward_) {
    with_error_context([&] { reductions_.order().event(name); });
  } else if (forward_depth_ > 0) {
    ++others_in_forward_;
  }
}

bool ShardedModule::Engine::may_touch() const {
  return forward_depth_ > 0 || parameters_readable_ || autograd_runs();
}

void ShardedModule::Engine::touch(std::span<const size_t> units) {
  const bool backward = autograd_runs();
  if (parameters_readable_ || (in_backward_ == backward && schedule_.read_last(units))) return;
  if (!backward) check_thread("shard.touch");
  with_error_context([&] {
    if (backward && !in_backward_ && only_asks_for_gradients()) {
      touch_for_gradient(units);
      return;
    }
    if (backward) {
      enter_backward();
    } else if (schedule_.pass() == Pass::kNone) {
      schedule_.begin(at::GradMode::is_enabled() ? Pass::kForward : Pass::kInference);
    }
    schedule_.touch(units);
  });
}

/// torch::autograd::grad(), which computes gradients of other tensors than the parameters: it neither reduces
/// nor counts as a backward of the step.
bool ShardedModule::Engine::only_asks_for_gradients() {
  const int task = torch::autograd::get_current_graph_task_id();
  if (task != gradient_task_) {
    gradient_task_only_asks_ = !reductions_.pass_brings_gradients();
    gradient_task_ = task;
  }
  return gradient_task_only_asks_;
}

void ShardedModule::Engine::touch_for_gradient(std::span<const size_t> units) {
  if (schedule_.pass() == Pass::kNone) {
    if (deferred_) std::rethrow_exception(std::exchange(deferred_, nullptr));
    check_edits_before_backward();
    schedule_.begin(Pass::kGradient);
    at_end_of_backward([self = weak_from_this()] {
      const auto engine = std::static_pointer_cast<Engine>(self.lock());
      if (!engine) return;
      const OnStream on_stream(engine->stream_);
      engine->with_error_context([&] { engine->schedule_.end(); });
    });
  }
  schedule_.touch(units);
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
    gathers_.clear();
  }
  if (schedule_.pass() == Pass::kGradient) schedule_.end();  // that pass failed half-way
  check_network();
  bring_up_to_date();
  ++forward_depth_;
  with_error_context(
      [&] { schedule_.begin(at::GradMode::is_enabled() ? Pass::kForward : Pass::kInference); });
}

/// Gathered copies are thrown away if the shards have, or may have, changed.
void ShardedModule::Engine::bring_up_to_date() {
  const bool adopted = adopt_data_of_shards();
  if (parameters_may_have_changed_ && !accumulating_) return parameters_changed();
  const bool changed = adopted || edits_.changed();
  if (changed && accumulating_) {
    const std::string which = micro_batches_ > 1 ? concat(micro_batch_ + 1, " of ", micro_batches_)
                                                 : std::string("that follows one inside no_sync()");
    user_error({.where = "shard.forward",
                .problem = concat("parameters changed before micro-batch ", which),
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
  if (in_backward_ || (autograd_runs() && only_asks_for_gradients())) return;
  if (deferred_) std::rethrow_exception(std::exchange(deferred_, nullptr));
  check_edits_before_backward();
  in_backward_ = true;
  show_no_gradients(false);
  if (schedule_.pass() != Pass::kNone) schedule_.end();  // backward inside forward's body
  if (!accumulating_) begin_gradients();
  for (UnitGroup& group : groups_) group.gradients_awaited = 0;
  for (const size_t unit : watched_units_) ++groups_[group_of_[unit]].gradients_awaited;
  guess_places();
  reduced_groups_.clear();
  with_error_context([&] {
    reductions_.begin(is_last_pass());
    schedule_.begin(Pass::kBackward);
  });
  at_end_of_backward([self = weak_from_this()] {
    if (const auto engine = std::static_pointer_cast<Engine>(self.lock())) engine->leave_backward();
  });
}

/// Before the first step's end: backward is expected to read units in the reverse order of forward, and a
/// unit's gradients to be complete once the next unit is read.
void ShardedModule::Engine::guess_places() {
  ReductionOrder& order = reductions_.order();
  if (order.is_learned()) return;
  const std::vector<size_t>& forward = schedule_.order(Pass::kForward);
  // Where no collective interrupts backward, any place is the same place.
  const bool uninterrupted = forward.empty() && others_in_forward_ == 0;
  std::vector<size_t> place_of(groups_.size(), uninterrupted ? 0 : ReductionOrder::kAtTheEnd);
  std::vector<std::string> events;
  for (auto group = forward.rbegin(); group != forward.rend(); ++group) {
    events.push_back(groups_[*group].name);
    place_of[*group] = events.size();
  }
  std::vector<size_t> places;
  for (const size_t unit : watched_units_) places.push_back(place_of[group_of_[unit]]);
  order.guess(std::move(events), std::move(places));
}

void ShardedModule::Engine::leave_backward() {
  const OnStream on_stream(stream_);
  with_error_context([&] {
    const at::NoGradGuard no_grad;
    reductions_.finish();
    schedule_.end();
    in_backward_ = false;
    show_no_gradients(true);
    if (!is_last_pass()) return;
    hand_out_gradients();
    // What stays gathered is about to be outdated by the optimizer: torch::save would read it.
    for (const auto& unit : units_) unit->hide();
    schedule_.finish_again();
    gathers_.clear();
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

/// At the end of a step: ranks compare what they did in it. Returns the watched units whose gradients were
/// late on some rank.
std::vector<bool> ShardedModule::Engine::agree_on_step(const std::vector<bool>& late) {
  mesh::Group& world = mesh_.world();
  std::string late_text;
  for (const bool one : late) late_text += one ? '1' : '0';
  arrived_ = {arrived_text()};
  std::vector<bool> late_anywhere = late;
  const std::vector<std::string> sums = world.all_gather_text(
      checksum_of(concat(arrived_[0], "\n", late_text, "\n", join(gathers_, "\n"))), "end of step");
  if (std::count(sums.begin(), sums.end(), sums[0]) != world.size()) {
    compare_gathers();
    arrived_ = world.all_gather_text(arrived_[0], "parameters in use");
    for (const std::string& text : world.all_gather_text(late_text, "late gradients")) {
      for (size_t unit = 0; unit < late.size(); ++unit) {
        if (text[unit] == '1') late_anywhere[unit] = true;
      }
    }
  }
  learn_places(late_anywhere);
  return late_anywhere;
}

void ShardedModule::Engine::compare_gathers() {
  const std::vector<std::string> everyones =
      mesh_.world().all_gather_text(join(gathers_, "\n"), "gathers of the step");
  for (size_t rank = 1; rank < everyones.size(); ++rank) {
    if (everyones[rank] == everyones[0]) continue;
    throw CommError(concat("[shard.backward] ranks gathered different units: in step ", step_ + 1, " rank ",
                           rank, " did ", first_difference(everyones[rank], everyones[0]), "; ",
                           own_data_hint()));
  }
}

/// Where reductions start in the next passes; see Note [Places of reductions].
void ShardedModule::Engine::learn_places(const std::vector<bool>& late) {
  ReductionOrder& order = reductions_.order();
  std::vector<bool> used(watched_units_.size());
  size_t character = 0;
  for (size_t unit = 0; unit < used.size(); ++unit) {
    for (size_t i = 0; i < reductions_.arrived(unit).size(); ++i, ++character) {
      for (const std::string& text : arrived_) used[unit] = used[unit] || text[character] == '1';
    }
  }
  const bool any_late = std::find(late.begin(), late.end(), true) != late.end();
  if (!order.should_learn(used, any_late)) return;
  std::ostringstream mine;
  for (const UnitArrival& arrival : order.arrivals()) mine << arrival.events << ' ' << arrival.turn << ' ';
  std::vector<std::vector<UnitArrival>> of_ranks;
  for (const std::string& text : mesh_.world().all_gather_text(mine.str(), "arrival of gradients")) {
    std::istringstream theirs(text);
    std::vector<UnitArrival> arrivals(order.units());
    for (UnitArrival& arrival : arrivals) theirs >> arrival.events >> arrival.turn;
    of_ranks.push_back(std::move(arrivals));
  }
  order.learn(of_ranks);
}

/// Fills .grad of every parameter that some rank's loss depended on.
void ShardedModule::Engine::hand_out_gradients() {
  gradient_entries_.clear();
  std::vector<size_t> first(units_.size());  // character of each unit's first parameter
  for (size_t i = 0, at = 0; i < watched_units_.size(); ++i) {
    first[watched_units_[i]] = at;
    at += reductions_.arrived(i).size();
  }
  for (size_t i = 0; i < shards_.size(); ++i) {
    if (!shards_[i].trainable) continue;
    const ShardIndex index = shard_indices_[i];
    const size_t character = first[index.unit] + index.shard;
    const bool in_use = std::any_of(arrived_.begin(), arrived_.end(),
                                    [&](const std::string& text) { return text[character] == '1'; });
    at::Tensor& gradient = shards_[i].values.mutable_grad();
    if (!in_use && !gradient.defined()) continue;
    // As optimizers expect it: no view in autograd's eyes.
    const at::Tensor sum = units_[index.unit]->shards()[index.shard].gradient.variable_data();
    gradient = watched_gradient(sum.to(shards_[i].values.scalar_type()), index.unit);
  }
}

void ShardedModule::Engine::parameters_changed() {
  parameters_may_have_changed_ = false;
  if (edits_.remember()) outdate_graphs();
  for (const auto& unit : units_) unit->parameters_changed();
  schedule_.forget();
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
