// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/loop.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "tessera/arch/model.h"
#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/process_memory.h"
#include "tessera/base/random.h"
#include "tessera/base/text.h"
#include "tessera/base/trace.h"
#include "tessera/data/leaving.h"
#include "tessera/eager/non_finite.h"
#include "tessera/eager/pass.h"
#include "tessera/eager/recorded_step.h"
#include "tessera/eager/statistics.h"
#include "tessera/eager/step_end.h"
#include "tessera/eager/teacher.h"
#include "tessera/monitor/bar.h"
#include "tessera/monitor/number.h"

namespace tessera::train {
namespace {

/// A point of the curve of memory, if this step is traced.
void trace_memory() {
  if (Trace* trace = current_trace()) {
    trace->counter("resident memory", "MiB", static_cast<double>(resident_bytes()) / (1 << 20));
  }
}

}  // namespace

StepResult train_step(eager::TrainState& state, data::TrainLoader& loader, const recipe::BatchSizes& sizes,
                      double lr, const std::function<bool()>& stop_requested, mesh::Mesh& mesh) {
  const uint64_t key =
      random_key(random_key(state.recipe.train.seed, "step"), static_cast<uint64_t>(state.step));
  const eager::BuffersBefore buffers(state);
  const int64_t looked_at = state.recipe.run.statistics_every;
  eager::StepStatistics statistics(state, looked_at > 0 && (state.step + 1) % looked_at == 0);
  const double scale = state.loss_scale.value();
  // Added up where it is computed: reading it here would make the host wait for every micro-batch.
  at::Tensor loss_so_far = at::zeros({}, at::TensorOptions(at::kDouble).device(state.input->device()));
  int64_t samples = 1;  // of the step
  bool given_up = false;
  for (int64_t micro = 0; micro < sizes.accumulation; ++micro) {
    // Whoever gave up waiting asks for no more.
    eager::DeviceInput::Input input = given_up ? eager::DeviceInput::Input() : state.input->next(loader);
    const bool mine = input.batch.size > 0;  // else it helps the others to gather and to reduce
    given_up = given_up || input.batch.given_up;
    if (!given_up) samples = input.batch.step_size;
    if (!mine) input = state.input->with_images(eager::placeholder_batch(state));
    const at::Tensor teacher_logits = state.teacher ? state.teacher->logits(input, mine) : at::Tensor();
    const auto seen = [&] {
      statistics.forward_done(mine);
      trace_memory();
    };
    const eager::Pass pass{
        input, teacher_logits, mine, samples, micro == 0, micro + 1 == sizes.accumulation, key, seen};
    const bool as_recorded = state.recorded && !statistics.due();
    const at::Tensor loss =
        as_recorded ? state.recorded->run(state, pass, mesh) : eager::run_pass(state, pass);
    trace_memory();
    if (!given_up) state.input->begin_next(loader);
    loss_so_far.add_(loss);
    state.input->give_back(loader, std::move(input));
  }

  state.optimizer->forget_frozen_gradients();
  // Asked for as late as possible: a stop that comes in the middle of a long step ends with this step.
  const bool stop = given_up || (stop_requested && stop_requested());
  eager::StepEnd end(state, loss_so_far, {stop, given_up, loader.unreported_broken()}, mesh);
  StepResult result{.stop = end.votes().stop, .stalled = end.votes().stalled, .samples = samples};
  if (result.stalled) {
    buffers.put_back(state);
    return result;
  }
  result.statistics = statistics.finish(scale, mesh);
  if (end.votes().broken > 0) {
    loader.merge_broken(mesh.world().all_gather_text(loader.report_broken(), "broken samples"));
  }
  const TraceSpan span("optimizer", "optimizer");
  const eager::StepValues numbers = end.numbers(lr);
  result.loss = numbers.loss;
  result.gradient_norm = numbers.gradient_norm;
  result.skipped = eager::judge_step(state, result.loss, result.gradient_norm, mesh);
  end.finish(/*is_used=*/result.skipped.empty(), lr);
  if (!result.skipped.empty()) buffers.put_back(state);
  state.sharded->parameters_changed();
  ++state.step;
  if (state.ema && result.skipped.empty()) state.ema->follow(state.step);
  return result;
}

namespace {

/// Which steps evaluate and save. A step count of 0 means: only at the end.
struct Schedule {
  struct Every {
    int64_t steps, begin;  // counted from there
  };
  Every eval_every, save_every;
  int64_t total;

  static Schedule of(const recipe::Recipe& recipe, const recipe::StepCounts& counts) {
    const auto every = [&](int64_t every_steps, double every_epochs) -> Every {
      if (every_steps > 0 || every_epochs <= 0) return {every_steps, 0};
      return {std::max<int64_t>(1, std::llround(every_epochs * counts.steps_per_epoch)), counts.begin};
    };
    return {every(recipe.train.eval_every_steps, recipe.train.eval_every_epochs),
            every(recipe.checkpoint.every_steps, recipe.checkpoint.every_epochs), counts.total};
  }
  bool due(const Every& every, int64_t step) const {
    return step == total || (every.steps > 0 && (step - every.begin) % every.steps == 0);
  }
};

using Clock = std::chrono::steady_clock;

/// Is this among the checkpoint.keep_best best evaluations so far? Then it takes its place there.
bool take_if_best(eager::TrainState& state, const monitor::EvalMetrics& metrics) {
  const std::string& name = state.recipe.checkpoint.best;
  const double value = name == "top1"       ? metrics.top1
                       : name == "loss"     ? metrics.loss
                       : name == "top1_ema" ? metrics.top1_ema.value_or(metrics.top1)
                                            : metrics.loss_ema.value_or(metrics.loss);
  state.score = name.starts_with("loss") ? -value : value;
  if (std::isnan(value)) return false;
  const auto most = static_cast<size_t>(state.recipe.checkpoint.keep_best);
  if (state.best.size() >= most && state.score <= state.best[most - 1]) return false;
  state.best.insert(std::upper_bound(state.best.begin(), state.best.end(), state.score, std::greater<>()),
                    state.score);
  state.best.resize(std::min(state.best.size(), most));
  return true;
}

/// The loop's own bookkeeping: times, the last evaluation, what rank 0 says.
class Loop {
 public:
  Loop(eager::TrainState& state, const LoopInput& input, mesh::Mesh& mesh, monitor::Monitor* monitor,
       Log& log)
      : state_(state),
        input_(input),
        mesh_(mesh),
        monitor_(monitor),
        log_(log),
        saver_(state, mesh, input.checkpoints, log),
        schedule_(Schedule::of(state.recipe, input.counts)),
        end_(input.steps_only > 0 ? state.step + input.steps_only : input.counts.total),
        image_flops_(arch::training_flops(state.recipe.model)) {}

  LoopResult run() {
    const bool steps_only = input_.steps_only > 0;
    bool stop = false;
    if (state_.eval_due) {  // the stop that ended the last process put it off
      const bool best = evaluate_and_rank();
      stop = state_.eval_due;
      if (best || stop) save(best);
    } else if (!steps_only && state_.recipe.train.eval_first && state_.step == 0) {
      stop = evaluate_now();
      if (stop) save(false);
    }
    data::LoaderOptions options = input_.loader;
    options.give_up = input_.stop_requested;
    data::Leaving loader(
        std::make_unique<data::TrainLoader>(input_.train, state_.recipe.data.transform, options, state_.step),
        options.patience);
    loader_ = &*loader;
    state_.input->forget();
    while (state_.step < end_ && !stop) {
      const double lr = recipe::learning_rate(state_.recipe, input_.counts, state_.step);
      const auto start = Clock::now();
      const double waited = mesh_.wait_seconds();
      const StepResult step = traced_step(*loader, lr);
      if (step.stalled) {
        log_.warn("stopped while waiting for data; this step was not taken");
        stop = files_hang_ = true;
        write_trace_when_done(stop);
        if (!steps_only) save(false);
        break;
      }
      const double seconds = seconds_since(start);
      state_.seconds += seconds;
      if (!step.skipped.empty()) log_.warn(step.skipped);
      tell(step, lr, seconds, loader->take_wait_seconds(), mesh_.wait_seconds() - waited);
      result_.last_step = step;
      // Several ranks agree on a stop by the vote of a step; one rank alone also hears of it after the vote.
      stop = step.stop || (mesh_.world_size() == 1 && input_.stop_requested());
      write_trace_when_done(stop);
      if (steps_only) continue;
      const bool save_due = schedule_.due(schedule_.save_every, state_.step);
      bool best = false;
      state_.eval_due = schedule_.due(schedule_.eval_every, state_.step);
      if (state_.eval_due && !stop) {
        best = evaluate_and_rank();
        stop = state_.eval_due;
      }
      if (save_due || best || stop) save(best);
    }
    // A run that was finished already still says what it reached.
    if (!stop && !steps_only && result_.last.metrics.samples == 0) stop = evaluate_now();
    result_.broken_train = loader->agreed_broken();
    if (result_.broken_train > 0) {
      log_.warn(concat(result_.broken_train, " broken training samples were skipped"));
    }
    result_.checkpoint = saver_.finish();
    result_.saves = saver_.times();
    tell_saves();
    result_.train_seconds = state_.seconds;
    result_.skipped_steps = state_.guard.skipped() + state_.loss_scale.overflows();
    if (result_.skipped_steps > 0) log_.warn(concat(result_.skipped_steps, " steps were skipped"));
    result_.finished = state_.step >= end_ && !stop;
    files_hang_ ? loader.close(data::kBrief) : loader.close();
    result_.stalled = result_.stalled || loader.left_behind();
    if (result_.stalled) log_.record("threads that wait for images are left behind");
    if (own_seconds_ > 0) result_.images_per_second = static_cast<double>(own_images_) / own_seconds_;
    return std::move(result_);
  }

 private:
  StepResult traced_step(data::TrainLoader& loader, double lr) {
    const int64_t number = state_.step + 1;  // as the lines count
    const TraceScope scope(traced_ && traced_->contains(number) ? &trace_ : nullptr);
    const std::string name = scope.on() ? concat("step ", number) : "";
    const TraceSpan span("step", name);
    trace_memory();
    return train_step(state_, loader, input_.sizes, lr, input_.stop_requested, mesh_);
  }

  /// Once the last step to trace is made, or the run stops before. All ranks agree on that.
  void write_trace_when_done(bool stop) {
    if (!traced_ || state_.step < traced_->first) return;
    if (state_.step < std::min(traced_->last, end_) && !stop) return;
    traced_.reset();
    const auto events = mesh_.world().all_gather_text(trace_.events(), "trace");
    if (mesh_.rank() != 0 || input_.trace_file.empty()) return;
    try {
      write_file_atomic(input_.trace_file, trace_document(events));
      log_.info(concat("trace in ", input_.trace_file.string(), " (open it in ui.perfetto.dev)"));
    } catch (const UserError& error) {
      log_.warn(concat(error.what(), "; training goes on"));
    }
  }

  void tell(const StepResult& step, double lr, double seconds, double data_wait, double comm_wait) {
    own_seconds_ += seconds;
    own_images_ += step.samples;
    // Waits come in bursts: a line tells the mean since the line before.
    if (is_line(state_.step - 1)) waits_ = {};
    waits_.seconds += seconds;
    waits_.data += data_wait;
    waits_.comm += comm_wait;
    if (monitor_ == nullptr) {
      record(step, seconds);
      return;
    }
    monitor::StepMetrics metrics;
    metrics.step = state_.step;
    metrics.epoch = epoch();
    metrics.loss = step.loss;
    metrics.learning_rate = lr;
    metrics.gradient_norm = step.gradient_norm;
    metrics.images_per_second = static_cast<double>(step.samples) / seconds;
    metrics.tflops = image_flops_ * metrics.images_per_second / 1e12;
    metrics.data_wait = waits_.data / waits_.seconds;
    metrics.comm_wait = waits_.comm / waits_.seconds;
    metrics.memory_bytes = static_cast<double>(resident_bytes());
    metrics.seconds = state_.seconds;
    if (const auto there = eager::device_memory(state_.input->device())) {
      metrics.device_bytes = static_cast<double>(there->bytes);
      metrics.device_peak_bytes = static_cast<double>(there->peak_bytes);
    }
    monitor_->step(metrics);
    if (!step.statistics.empty()) monitor_->statistics(state_.step, step.statistics);
  }

  /// What a rank without a monitor leaves in its log: how far it came, and what it waited for.
  void record(const StepResult& step, double seconds) {
    if (!is_line(state_.step)) return;
    const std::string line =
        monitor::print("step %ld/%ld  loss %.4f  %.3f s  data %.0f %%  comm %.0f %%",
                       static_cast<long>(state_.step), static_cast<long>(input_.counts.total), step.loss,
                       seconds, 100 * waits_.data / waits_.seconds, 100 * waits_.comm / waits_.seconds);
    const auto there = eager::device_memory(state_.input->device());
    log_.record(there ? concat(line, "  ",
                               monitor::device_memory_text(static_cast<double>(there->bytes),
                                                           static_cast<double>(there->peak_bytes)))
                      : line);
  }

  bool is_line(int64_t step) const {
    return step % state_.recipe.train.log_every == 0 || step == input_.counts.total;
  }

  double epoch() const {
    return static_cast<double>(state_.step - input_.counts.begin) / input_.counts.steps_per_epoch;
  }

  /// Is this the best so far? Stays due when some rank was asked to stop meanwhile.
  bool evaluate_and_rank() {
    state_.eval_due = evaluate_now();
    return !state_.eval_due && take_if_best(state_, result_.last.metrics);
  }

  /// True: some rank was asked to stop meanwhile.
  bool evaluate_now() {
    eager::EvaluateOptions options;
    options.batch =
        state_.recipe.train.eval_batch > 0 ? state_.recipe.train.eval_batch : input_.sizes.per_rank;
    options.keep_samples = 48;
    options.stop = input_.stop_requested;
    if (monitor_ != nullptr) {
      options.progress = [this](int64_t done, int64_t total) {
        monitor_->status(concat("evaluating ", done, "/", total));
      };
    }
    eager::Evaluation evaluation = evaluate_until_stop(options);
    if (evaluation.stopped) return true;
    if (state_.ema && !evaluate_average(options, evaluation.metrics)) return true;
    if (evaluation.figures.broken > 0)
      log_.warn(concat(evaluation.figures.broken, " broken validation samples count as wrong"));
    evaluation.metrics.step = state_.step;
    evaluation.metrics.epoch = epoch();
    if (monitor_ != nullptr) monitor_->eval(evaluation.metrics);
    result_.last = std::move(evaluation);
    return false;
  }

  eager::Evaluation evaluate_until_stop(const eager::EvaluateOptions& options) {
    data::LoaderOptions loader = input_.loader;
    loader.give_up = input_.stop_requested;
    const recipe::PrecisionRecipe& precision = state_.recipe.precision;
    const bool narrow = precision.linear == recipe::Linear::kFp8 ||
                        eager::resolve_dtype(precision.compute, state_.input->device()) != at::kFloat;
    const bool precise =
        narrow && state_.step >= input_.counts.total && precision.final_evaluation == recipe::Dtype::kFloat32;
    const std::unique_ptr<eager::TrainState> copy = precise ? eager::in_float32(state_, mesh_) : nullptr;
    eager::Evaluation evaluation = eager::evaluate(copy ? *copy : state_, input_.val, loader, options, mesh_);
    result_.stalled = result_.stalled || evaluation.stalled;
    files_hang_ = files_hang_ || evaluation.gave_up;
    return evaluation;
  }

  /// The same with the averaged weights in the place of the weights; false: stopped.
  bool evaluate_average(eager::EvaluateOptions options, monitor::EvalMetrics& metrics) {
    options.keep_samples = 0;
    state_.ema->exchange(*state_.sharded);
    const eager::Evaluation evaluation = evaluate_until_stop(options);
    state_.ema->exchange(*state_.sharded);
    metrics.top1_ema = evaluation.metrics.top1;
    metrics.loss_ema = evaluation.metrics.loss;
    return !evaluation.stopped;
  }

  void save(bool best) {
    if (monitor_ != nullptr) monitor_->status("saving a checkpoint");
    if (state_.data && loader_ != nullptr) state_.data->position = loader_->position(state_.step);
    saver_.save(best);
  }

  void tell_saves() {
    const SaveTimes& saves = result_.saves;
    if (saves.saves == 0) return;
    log_.record(concat("saves: ", saves.saves, ", training stood still for ", saves.stalled,
                       " s, copies took ", saves.copied, " s, writing ", saves.written, " s"));
  }

  eager::TrainState& state_;
  const LoopInput& input_;
  mesh::Mesh& mesh_;
  monitor::Monitor* monitor_;
  Log& log_;
  Saver saver_;
  Schedule schedule_;
  int64_t end_;
  double image_flops_;                                                           // of forward and backward
  std::optional<StepRange> traced_ = parse_step_range(state_.recipe.run.trace);  // until it is written
  Trace trace_{mesh_.rank()};
  double own_seconds_ = 0;
  int64_t own_images_ = 0;
  const data::TrainLoader* loader_ = nullptr;  // while the loop runs
  bool files_hang_ = false;                    // some rank gave up waiting for images
  struct {
    double seconds = 0, data = 0, comm = 0;
  } waits_;  // since the last line
  LoopResult result_;
};

}  // namespace

LoopResult run(eager::TrainState& state, const LoopInput& input, mesh::Mesh& mesh, monitor::Monitor* monitor,
               Log& log) {
  return Loop(state, input, mesh, monitor, log).run();
}

}  // namespace tessera::train
