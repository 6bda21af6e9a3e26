// SPDX-License-Identifier: Apache-2.0
#include "tessera/loop/evaluations.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "tessera/base/text.h"

namespace tessera::loop {

// (More than 5 parameters: references that it holds.)
Evaluations::Evaluations(RunState& state, Backend& backend, World& world, Options options,
                         monitor::Monitor* monitor, Log& log)
    : state_(state),
      backend_(backend),
      world_(world),
      options_(std::move(options)),
      monitor_(monitor),
      log_(log) {}

bool Evaluations::evaluate(double epoch) {
  EvaluateOptions options;
  options.batch = options_.batch;
  options.keep_samples = 48;
  options.stop = options_.stop_requested;
  if (monitor_ != nullptr) {
    options.progress = [this](int64_t done, int64_t total) {
      monitor_->status(concat("evaluating ", done, "/", total));
    };
  }
  Evaluation evaluation = evaluate_weights(/*average=*/false, options);
  if (evaluation.stopped) return true;
  if (backend_.has_average()) {
    options.keep_samples = 0;
    const Evaluation average = evaluate_weights(/*average=*/true, options);
    if (average.stopped) return true;
    evaluation.metrics.top1_ema = average.metrics.top1;
    evaluation.metrics.loss_ema = average.metrics.loss;
  }
  if (evaluation.figures.broken > 0)
    log_.warn(concat(evaluation.figures.broken, " broken validation samples count as wrong"));
  evaluation.metrics.step = state_.step;
  evaluation.metrics.epoch = epoch;
  if (monitor_ != nullptr) monitor_->eval(evaluation.metrics);
  last_ = std::move(evaluation);
  return false;
}

Evaluation Evaluations::evaluate_weights(bool average, const EvaluateOptions& options) {
  data::LoaderOptions loader = options_.loader;
  loader.give_up = options_.stop_requested;
  const bool precise = backend_.is_narrow() && state_.step >= options_.last_step &&
                       state_.recipe.precision.final_evaluation == recipe::Dtype::kFloat32;
  const std::unique_ptr<Evaluator> evaluator = backend_.evaluator(average, precise);
  Evaluation evaluation =
      loop::evaluate(*evaluator, options_.val, state_.recipe.data.transform, loader, options, world_);
  stalled_ = stalled_ || evaluation.stalled;
  files_hang_ = files_hang_ || evaluation.gave_up;
  return evaluation;
}

bool Evaluations::take_if_best() {
  const monitor::EvalMetrics& metrics = last_.metrics;
  const std::string& name = state_.recipe.checkpoint.best;
  const double value = name == "top1"       ? metrics.top1
                       : name == "loss"     ? metrics.loss
                       : name == "top1_ema" ? metrics.top1_ema.value_or(metrics.top1)
                                            : metrics.loss_ema.value_or(metrics.loss);
  state_.score = name.starts_with("loss") ? -value : value;
  if (std::isnan(value)) return false;
  const auto most = static_cast<size_t>(state_.recipe.checkpoint.keep_best);
  std::vector<double>& best = state_.best;
  if (best.size() >= most && state_.score <= best[most - 1]) return false;
  best.insert(std::upper_bound(best.begin(), best.end(), state_.score, std::greater<>()), state_.score);
  best.resize(std::min(best.size(), most));
  return true;
}

}  // namespace tessera::loop
