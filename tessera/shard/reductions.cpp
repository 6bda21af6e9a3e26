// SPDX-License-Identifier: Apache-2.0
#include "tessera/shard/reductions.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::shard {
namespace {

using torch::autograd::variable_list;

/// Calls back when a parameter's gradient has been accumulated.
class GradientAccumulated : public torch::autograd::FunctionPostHook {
 public:
  explicit GradientAccumulated(std::function<void()> callback) : callback_(std::move(callback)) {}
  variable_list operator()(const variable_list& outputs, const variable_list& /*inputs*/) override {
    callback_();
    return outputs;
  }

 private:
  std::function<void()> callback_;
};

thread_local int communicating = 0;

/// This thread's collectives are those of a reduction while one lives.
class Communicates {
 public:
  Communicates() { ++communicating; }
  ~Communicates() { --communicating; }
  Communicates(const Communicates&) = delete;
  Communicates& operator=(const Communicates&) = delete;
};

/// Will the pass that autograd runs on this thread run this node?
bool is_in_pass(const std::shared_ptr<void>& accumulator) {
  auto* node = static_cast<torch::autograd::Node*>(accumulator.get());
  const auto* nodes = torch::autograd::get_current_graph_task_nodes_in_graph();
  if (node == nullptr || nodes == nullptr || nodes->count(node) == 0) return false;
  // Empty for backward(); otherwise it says what is needed for the tensors that were asked for.
  const auto* asked_for = torch::autograd::get_current_graph_task_exec_info();
  if (asked_for->empty()) return true;
  const auto found = asked_for->find(node);
  return found != asked_for->end() && found->second.needed_;
}

}  // namespace

Reductions::Reductions(Callbacks callbacks)
    : callbacks_(std::move(callbacks)), alive_(std::make_shared<Reductions*>(this)) {
  if (callbacks_.agree_on_late) order_.emplace([this](size_t unit) { reduce(unit); });
}

Reductions::~Reductions() = default;

bool Reductions::communicates() { return communicating > 0; }

void Reductions::watch(Unit& unit, size_t segment) {
  auto watched = std::make_unique<Watched>();
  watched->unit = &unit;
  watched->segment = segment;
  const size_t index = watched_.size();
  const auto& parameters = unit.parameters();
  watched->arrived.resize(parameters.size());
  watched->parameters.resize(parameters.size());
  watched->accumulators.resize(parameters.size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!parameters[i].second.requires_grad()) continue;
    const auto accumulator = torch::autograd::impl::grad_accumulator(parameters[i].second);
    accumulator->add_post_hook(
        std::make_unique<GradientAccumulated>([self = std::weak_ptr<Reductions*>(alive_), index, i] {
          if (const auto alive = self.lock()) (*alive)->gradient_arrived(index, i);
        }));
    watched->accumulators[i] = accumulator;
  }
  watched_.push_back(std::move(watched));
  if (order_) order_->add_unit();
}

void Reductions::expect_gradients(Watched& watched) const {
  watched.expected = 0;
  for (size_t i = 0; i < watched.parameters.size(); ++i) {
    if (watched.accumulators[i] == nullptr) continue;
    Expected& parameter = watched.parameters[i];
    parameter.in_graph = is_in_pass(watched.accumulators[i]);
    parameter.came = 0;
    const int64_t apart = parameter.apart != kUnknown ? parameter.apart : parameter.in_graph ? 0 : 1;
    watched.expected += (parameter.in_graph ? 1 : 0) + apart;
  }
}

void Reductions::begin(bool last) {
  under_way_ = true;
  last_ = last;
  segment_.reset();
  if (order_) order_->begin();
  for (size_t unit = 0; unit < watched_.size(); ++unit) {
    Watched& watched = *watched_[unit];
    watched.seen = 0;
    watched.reduced = watched.begun = false;
    expect_gradients(watched);
    watched.unit->begin_backward(last);
    if (order_ && watched.expected == 0) order_->complete(unit);
  }
}

bool Reductions::pass_brings_gradients() const {
  const auto* asked_for = torch::autograd::get_current_graph_task_exec_info();
  if (asked_for == nullptr || asked_for->empty()) return true;
  return std::any_of(watched_.begin(), watched_.end(), [](const auto& watched) {
    return std::any_of(watched->accumulators.begin(), watched->accumulators.end(), is_in_pass);
  });
}

void Reductions::gradient_arrived(size_t unit, size_t parameter) {
  try {
    collect(unit, parameter);
  } catch (const CommError&) {
    if (callbacks_.failed) callbacks_.failed(unit);
    throw;
  }
}

void Reductions::collect(size_t unit, size_t parameter) {
  if (!under_way_ && callbacks_.first_gradient) callbacks_.first_gradient();
  Watched& watched = *watched_[unit];
  // Embeddings can make sparse ones; what travels is dense.
  at::Tensor& gradient = watched.unit->parameters()[parameter].second.mutable_grad();
  if (gradient.defined() && gradient.layout() != at::kStrided) gradient = gradient.to_dense();
  watched.unit->take_gradient(parameter);
  watched.arrived[parameter] = true;
  watched.reduced = false;
  if (order_) order_->arrived(unit);
  advance();
  // A recomputed piece may bring a parameter's gradient in several parts; what comes after the unit's
  // reduction has started is reduced in finish(). A gradient that is being made in its place is not late.
  ++watched.parameters[parameter].came;
  ++watched.seen;
  const bool complete = watched.seen >= watched.expected && !watched.unit->awaits_gradient();
  if (order_) {
    if (complete) order_->complete(unit);
    order_->start_due();
  } else if (complete && !watched.begun) {
    reduce(unit);
  }
}

/// Gradients that are on their way to their sums are those of one segment: that bounds their memory. A block
/// whose layers are cut has two units, and what is left of it must not wait for what was cut.
void Reductions::wait_for_other_segments(size_t segment) {
  if (segment_ == segment) return;
  segment_ = segment;
  for (const size_t earlier : in_flight_) watched_[earlier]->unit->advance_reduce_stage();
}

void Reductions::reduce(size_t unit) {
  const Communicates communicates;
  Watched& watched = *watched_[unit];
  wait_for_other_segments(watched.segment);
  watched.unit->start_reduce();
  watched.unit->advance_reduce();
  watched.reduced = watched.begun = true;
  std::erase_if(in_flight_, [&](size_t earlier) { return !watched_[earlier]->unit->reducing(); });
  if (watched.unit->reducing()) in_flight_.push_back(unit);
  if (callbacks_.gradients_left) callbacks_.gradients_left(unit);
}

void Reductions::advance() {
  for (const size_t unit : in_flight_) watched_[unit]->unit->advance_reduce();
}

/// Waits for all that is under way, in the order of the units.
void Reductions::settle() {
  const Communicates communicates;
  const at::NoGradGuard no_grad;
  for (const auto& watched : watched_) {
    while (watched->unit->reducing()) watched->unit->advance_reduce_stage();
  }
  in_flight_.clear();
}

void Reductions::finish() {
  std::vector<bool> late(watched_.size());
  if (order_) {
    order_->start_rest();
    for (size_t i = 0; i < watched_.size(); ++i) late[i] = !watched_[i]->reduced;
    // Before the last pass a unit keeps its late gradients for its next reduction.
    if (last_) {
      settle();
      late = callbacks_.agree_on_late(late);
    } else {
      late.assign(late.size(), false);
    }
  } else {
    for (size_t i = 0; i < watched_.size(); ++i) late[i] = !watched_[i]->reduced;
  }
  for (size_t i = watched_.size(); i-- > 0;) {
    if (late[i]) reduce(i);
  }
  for (const auto& watched : watched_) {
    if (watched->seen == 0) continue;
    for (Expected& parameter : watched->parameters)
      parameter.apart = parameter.came - (parameter.in_graph ? 1 : 0);
  }
  const Communicates communicates;
  for (const auto& watched : watched_) watched->unit->finish_reduce();
  in_flight_.clear();
  under_way_ = false;
}

void Reductions::abandon() {
  if (!under_way_) return;
  const Communicates communicates;
  for (const auto& watched : watched_) watched->unit->abandon_backward();
  in_flight_.clear();
  under_way_ = false;
}

void Reductions::forget_arrived() {
  for (const auto& watched : watched_) watched->arrived.assign(watched->arrived.size(), false);
}

}  // namespace tessera::shard
