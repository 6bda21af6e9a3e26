// SPDX-License-Identifier: Apache-2.0
#include "tessera/loop/train_step.h"

#include <cmath>

#include "tessera/base/process_memory.h"
#include "tessera/base/random.h"
#include "tessera/base/text.h"
#include "tessera/base/trace.h"
#include "tessera/monitor/number.h"

namespace tessera::loop {
namespace {

using monitor::NumericsGuard;

/// All ranks know the votes of each other, and which samples are broken.
void agree(Backend& backend, World& world, data::TrainLoader& loader, const Votes& mine, StepResult& step) {
  const Votes votes = backend.vote(mine);
  step.stop = votes.stop;
  step.stalled = votes.stalled;
  if (step.stalled) return;
  step.statistics = backend.statistics();
  if (votes.broken > 0) loader.merge_broken(world.gather(loader.report_broken(), "broken samples"));
}

/// "the gradient of head.weight".
std::string non_finite_tensor(Backend& backend, double loss) {
  const std::string name = backend.non_finite_gradient();
  if (!name.empty()) return concat("the gradient of ", name);
  return std::isfinite(loss) ? "the sum of the gradient's squares" : "the loss";
}

}  // namespace

// (More than 5 parameters: state, back end, ranks and data are interfaces that tests replace one by one.)
StepResult train_step(RunState& state, Backend& backend, World& world, data::TrainLoader& loader,
                      int64_t micro_batches, double lr, const std::function<bool()>& stop_requested) {
  const recipe::Recipe& recipe = state.recipe;
  const int64_t every = recipe.run.statistics_every;
  StepResult step;
  backend.begin_step(
      {.step = state.step,
       .key = random_key(random_key(recipe.train.seed, "step"), static_cast<uint64_t>(state.step)),
       .loss_scale = state.loss_scale.value(),
       .statistics = every > 0 && (state.step + 1) % every == 0});
  const auto [given_up, samples] = backend.forward_backward(loader, micro_batches);
  step.samples = samples;
  // Asked for as late as possible: a stop that comes in the middle of a long step ends with this step.
  const bool stop = given_up || (stop_requested && stop_requested());
  agree(backend, world, loader, {stop, given_up, loader.unreported_broken()}, step);
  if (step.stalled) {
    backend.discard();
    return step;
  }
  const TraceSpan span("optimizer", "optimizer");
  const UpdateSettings settings{lr, recipe.train.clip, state.loss_scale.value(), state.guard.limit()};
  const StepValues values = backend.sums(settings);
  step.loss = values.loss;
  step.gradient_norm = values.gradient_norm;
  step.skipped = judge_step(state, backend, values);
  step.skipped.empty() ? backend.update(settings) : backend.discard();
  ++state.step;
  return step;
}

std::string judge_step(RunState& state, Backend& backend, const StepValues& values) {
  const auto [loss, gradient_norm] = values;
  using enum NumericsGuard::Verdict;
  monitor::LossScale& scale = state.loss_scale;
  const int64_t step = state.step + 1;  // as progress and metrics count
  // What is left out after a spike is not judged, by the scale neither.
  const bool in_range = state.guard.left_of_range() > 0;
  if (!in_range && scale.can_shrink() && std::isfinite(loss) && !std::isfinite(gradient_norm)) {
    const double before = scale.value();
    scale.overflowed();
    return concat("[train.loss_scale] step ", step, " is skipped: its gradients overflow fp16 at loss scale ",
                  before, " (now ", scale.value(), "; ", scale.overflows(), " in all)");
  }
  NumericsGuard& guard = state.guard;
  const std::string found = monitor::print("%g", loss);
  const auto verdict = guard.judge(loss, gradient_norm);
  switch (verdict) {
    case kUse:
      scale.used();
      return "";
    case kSkipSpike:
      return concat("[train.guard] step ", step, " is skipped: its loss ", found, " is above ",
                    guard.options().spike_factor, " times the median ", guard.median_loss(), " (",
                    guard.bad_in_a_row(), " in a row, ", guard.skipped(), " in all)");
    case kSkipRange:
      return concat("[train.guard] step ", step, " is skipped: it is one of the ", guard.options().spike_skip,
                    " after a spike (", guard.left_of_range(), " left, ", guard.skipped(), " in all)");
    case kStopSpike:
      throw NonFinite(concat(
          "[train.step] step ", step, " has loss ", found, ", after ", guard.options().spike_steps,
          " steps skipped in a row: expected at most guard.spike_factor = ", guard.options().spike_factor,
          " times the median ", guard.median_loss(), "; lower optimizer.lr, or raise guard.spike_factor"));
    case kSkipNotFinite:
    case kStopNotFinite:
      break;
  }
  const std::string which = non_finite_tensor(backend, loss);
  if (verdict == kSkipNotFinite) {
    return concat("[train.guard] step ", step, " is skipped: ", which, " is not finite (loss ", found, "; ",
                  guard.bad_in_a_row(), " in a row, ", guard.skipped(), " in all)");
  }
  const int64_t before = guard.bad_in_a_row() - 1;
  throw NonFinite(concat("[train.step] ", which, " is not finite in step ", step, " (loss ", found,
                         before > 0 ? concat(", after ", before, " skipped in a row") : "",
                         "); lower optimizer.lr, or raise schedule.warmup_steps",
                         backend.computes_narrow() ? ", or set precision.compute = \"fp32\"" : ""));
}

}  // namespace tessera::loop
