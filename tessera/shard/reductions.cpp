// SPDX-License-Identifier: Apache-2.0
#include "tessera/shard/reductions.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
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

}  // namespace

Reductions::Reductions(Callbacks callbacks)
    : callbacks_(std::move(callbacks)), alive_(std::make_shared<Reductions*>(this)) {}

Reductions::~Reductions() = default;

void Reductions::watch(Unit& unit) {
  auto watched = std::make_unique<Watched>();
  watched->unit = &unit;
  const size_t index = watched_.size();
  const auto& parameters = unit.parameters();
  watched->arrived.resize(parameters.size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!parameters[i].second.requires_grad()) continue;
    ++watched->expected;
    const auto accumulator = torch::autograd::impl::grad_accumulator(parameters[i].second);
    accumulator->add_post_hook(
        std::make_unique<GradientAccumulated>([self = std::weak_ptr<Reductions*>(alive_), index, i] {
          if (const auto alive = self.lock()) (*alive)->gradient_arrived(index, i);
        }));
    watched->accumulators.push_back(accumulator);
  }
  watched_.push_back(std::move(watched));
}

void Reductions::begin(bool last) {
  under_way_ = true;
  for (const auto& watched : watched_) {
    watched->seen = 0;
    watched->reduced = watched->begun = false;
    watched->unit->begin_backward(last);
  }
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
  watched.unit->take_gradient(parameter);
  watched.arrived[parameter] = true;
  watched.reduced = false;
  advance();
  // A recomputed shard may bring a parameter's gradient in several parts; what comes late is reduced in
  // finish(). What is made in its place already is not late.
  ++watched.seen;
  if (!watched.begun && watched.seen >= watched.expected && !watched.unit->awaits_gradient()) reduce(unit);
}

void Reductions::reduce(size_t unit) {
  Watched& watched = *watched_[unit];
  // One sum over a shard axis under way at a time bounds the memory of unreduced gradients.
  for (const size_t earlier : in_flight_) watched_[earlier]->unit->advance_reduce_stage();
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

void Reductions::finish() {
  for (size_t i = watched_.size(); i-- > 0;) {
    if (!watched_[i]->reduced) reduce(i);
    if (watched_[i]->seen > 0) watched_[i]->expected = watched_[i]->seen;
  }
  for (const auto& watched : watched_) watched->unit->finish_reduce();
  in_flight_.clear();
  under_way_ = false;
}

void Reductions::abandon() {
  if (!under_way_) return;
  for (const auto& watched : watched_) watched->unit->abandon_backward();
  in_flight_.clear();
  under_way_ = false;
}

void Reductions::forget_arrived() {
  for (const auto& watched : watched_) watched->arrived.assign(watched->arrived.size(), false);
}

}  // namespace tessera::shard
