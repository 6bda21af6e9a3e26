// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/pass.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/warn.h"
#include "tessera/ops/fault.h"
#include "tessera/train/bad_numbers.h"
#include "tessera/train/task.h"

namespace tessera::train {
namespace {

/// A few, so that libraries have made their handles and found their algorithms.
constexpr int64_t kOfAKindBefore = 3;

/// Gradients and loss of a pass.
class Results {
 public:
  Results(const TrainState& state, at::Tensor loss) : loss_(std::move(loss)) {
    for (const auto& unit : state.sharded->units()) gradients_.push_back(unit->gradient().clone());
  }

  /// Where those of another pass over the same batch, which the units hold, differ from these by more than
  /// sums in another order; empty: nowhere.
  std::string fault(const TrainState& state, const at::Tensor& loss) const {
    const double tolerance =
        resolve_dtype(state.recipe.precision.compute, loss.device()) == at::kFloat ? 1e-4 : 2e-2;
    if (const double far = distance(loss, loss_); !(far <= tolerance)) return concat("a loss ", far, " off");
    for (size_t i = 0; i < gradients_.size(); ++i) {
      const shard::Unit& unit = *state.sharded->units()[i];
      const double far = distance(unit.gradient(), gradients_[i]);
      if (!(far <= tolerance)) return concat("gradients of ", unit.name(), " ", far, " off");
    }
    return "";
  }

  void put_back(TrainState& state) const {
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < gradients_.size(); ++i) state.sharded->units()[i]->gradient().copy_(gradients_[i]);
  }
  const at::Tensor& loss() const { return loss_; }
  bool finite() const {
    const auto is_finite = [](const at::Tensor& tensor) { return tensor.isfinite().all().item<bool>(); };
    return is_finite(loss_) && std::ranges::all_of(gradients_, is_finite);
  }

 private:
  /// |a - b| / |b|; 0 for equal ones.
  static double distance(const at::Tensor& a, const at::Tensor& b) {
    const at::Tensor wanted = b.to(at::kDouble);
    const auto apart = (a.to(at::kDouble) - wanted).norm().item<double>();
    return apart == 0 ? 0 : apart / wanted.norm().item<double>();
  }

  at::Tensor loss_;
  std::vector<at::Tensor> gradients_;
};

/// While it lives, the other's batch is where a recording reads it.
class Lent {
 public:
  Lent(data::Batch& here, data::Batch& other) : here_(here), other_(other) { std::swap(here_, other_); }
  ~Lent() { std::swap(here_, other_); }
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;

 private:
  data::Batch &here_, &other_;
};

}  // namespace

at::Tensor run_pass(TrainState& state, const Pass& pass) {
  const at::Tensor logits = forward(state, pass.input, /*training=*/true, pass.key);
  if (pass.seen) pass.seen();
  at::Tensor loss =
      state.task->loss_sum(logits, pass.input.batch, pass.taught) / static_cast<double>(pass.samples);
  if (!pass.mine) loss = loss * 0.0;
  const double scale = state.loss_scale.value();
  state.sharded->backward(scale == 1 ? loss : loss * scale, pass.last);
  return loss.detach();
}

RecordedPasses::Kind RecordedPasses::kind_of(const Pass& pass) {
  Kind kind = pass.input.images.sizes().vec();
  kind.insert(kind.end(), {pass.samples, pass.taught.defined(), pass.input.batch.label_weights.empty()});
  return kind;
}

at::Tensor RecordedPasses::run(TrainState& state, Pass pass) {
  if (!fault_.empty() || !pass.mine) return run_pass(state, pass);
  Kind kind = kind_of(pass);
  if (graph_ && kind == recorded_) {
    in_a_row_ = 0;
    before_.clear();
    return replay(state, pass);
  }
  in_a_row_ = kind == before_ ? in_a_row_ + 1 : 1;
  before_ = std::move(kind);
  return in_a_row_ > kOfAKindBefore ? record(state, pass) : run_pass(state, pass);
}

at::Tensor RecordedPasses::record(TrainState& state, const Pass& pass) {
  using std::string_literals::operator""s;
  graph_.reset();
  recorded_ = before_;
  std::optional<BuffersBefore> before, after;
  fault_ = ops::said_or_thrown([&] {
    images_ = pass.input.images.clone();
    taught_ = pass.taught.defined() ? pass.taught.clone() : at::Tensor();
    before.emplace(state);
    return ""s;
  });
  if (!fault_.empty()) {
    give_up(state);
    return run_pass(state, pass);
  }
  const Lent lent(input_.batch, pass.input.batch);
  input_.images = images_;
  Pass recorded{input_, taught_, pass.mine, pass.samples, pass.last, pass.key, pass.seen};
  state.sharded->keep_gradients(true);

  at::Tensor loss;
  numbers_.collect([&] { loss = run_pass(state, recorded); });
  std::optional<Results> wanted;
  fault_ = ops::said_or_thrown([&] {
    wanted.emplace(state, loss);
    after.emplace(state);
    return ""s;
  });
  if (!fault_.empty()) {
    give_up(state);
    return loss;
  }
  if (!wanted->finite()) {  // nothing to compare with; the step will be skipped, or end the run
    in_a_row_ = 0;
    return loss;
  }

  recorded.seen = nullptr;
  before->put_back(state);
  fault_ = ops::said_or_thrown([&] {
    for (const auto& unit : state.sharded->units()) unit->begin_gradient(/*keep=*/false, 1);
    graph_ = make_();
    graph_->record([this, &state, recorded] { numbers_.give([&] { loss_ = run_pass(state, recorded); }); });
    // What the replay leaves out is then found.
    for (const auto& unit : state.sharded->units()) unit->gradient().fill_(NAN);
    graph_->replay();
    return wanted->fault(state, loss_);
  });
  if (fault_.empty()) return loss_;
  state.sharded->abandon_backward();  // if it did not come to its end
  wanted->put_back(state);
  after->put_back(state);
  give_up(state);
  return wanted->loss();
}

void RecordedPasses::give_up(TrainState& state) {
  warn(concat("[train.pass] a recorded pass that gives what its operations give: found ", fault_,
              " (passes go operation by operation, as with run.cuda_graphs = false)"));
  graph_.reset();
  images_ = taught_ = loss_ = input_.images = at::Tensor();
  numbers_ = ops::HostNumbers();
  state.sharded->keep_gradients(false);
}

at::Tensor RecordedPasses::replay(TrainState& state, const Pass& pass) {
  const at::NoGradGuard no_grad;
  const Lent lent(input_.batch, pass.input.batch);
  enter(state, input_.batch, /*training=*/true, pass.key);
  images_.copy_(pass.input.images, /*non_blocking=*/true);
  if (taught_.defined()) taught_.copy_(pass.taught, /*non_blocking=*/true);
  numbers_.renew();
  graph_->replay();
  ++replays_;
  return loss_;
}

std::string why_not_recorded(const recipe::Recipe& recipe, const plan::Plan& plan, at::Device device) {
  if (ops::device_graphs(device) == nullptr) return "a CPU records nothing";
  if (plan.world > 1) return "more than one rank";
  if (recipe::resolve_batch(recipe.train, plan.world).accumulation > 1)
    return "micro-batches are accumulated";
  if (resolve_dtype(recipe.precision.compute, device) == at::kHalf) return "fp16's loss scale changes";
  const bool offloads = std::ranges::any_of(
      plan.units, [](const plan::UnitPlan& unit) { return unit.offload != plan::Offload::kNone; });
  return offloads ? "state lies in the host's memory" : "";
}

}  // namespace tessera::train
