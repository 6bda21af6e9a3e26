// SPDX-License-Identifier: Apache-2.0
#include "tessera/loop/loop.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "tessera/base/clock.h"
#include "tessera/base/text.h"
#include "tessera/data/leaving.h"
#include "tessera/loop/evaluations.h"
#include "tessera/loop/step_pace.h"
#include "tessera/loop/telemetry.h"

namespace tessera::loop {
namespace {

/// Steps between evaluations or saves, counted from `begin`. 0 steps: only at the end.
struct Every {
  int64_t steps = 0, begin = 0, last = 0;

  static Every of(int64_t steps, double epochs, const recipe::StepCounts& counts) {
    if (steps > 0 || epochs <= 0) return {steps, 0, counts.total};
    return {std::max<int64_t>(1, std::llround(epochs * counts.steps_per_epoch)), counts.begin, counts.total};
  }
  bool is_due(int64_t step) const { return step == last || (steps > 0 && (step - begin) % steps == 0); }
};

class Loop {
 public:
  // (More than 5 parameters: references that the loop holds.)
  Loop(RunState& state, Backend& backend, World& world, const LoopInput& input, monitor::Monitor* monitor,
       Log& log)
      : state_(state),
        backend_(backend),
        world_(world),
        input_(input),
        monitor_(monitor),
        log_(log),
        end_(input.steps_only > 0 ? state.step + input.steps_only : input.counts.total),
        eval_every_(Every::of(state.recipe.train.eval_every_steps, state.recipe.train.eval_every_epochs,
                              input.counts)),
        save_every_(Every::of(state.recipe.checkpoint.every_steps, state.recipe.checkpoint.every_epochs,
                              input.counts)),
        saver_(state, backend, world, input.checkpoints, log, input.folder_fault),
        telemetry_(state, backend, input.counts, monitor, log),
        pace_(input.when_pace_is_known),
        trace_(state, end_, world, input.trace_file, input.folder_fault, log),
        evaluations_(
            state, backend, world,
            {input.val, input.loader,
             state.recipe.train.eval_batch > 0 ? state.recipe.train.eval_batch : input.sizes.per_rank,
             input.counts.total, input.stop_requested},
            monitor, log) {}

  LoopResult run() {
    bool stop = evaluate_first();
    data::LoaderOptions options = input_.loader;
    options.give_up = input_.stop_requested;
    data::Leaving loader(
        std::make_unique<data::TrainLoader>(input_.train, state_.recipe.data.transform, options, state_.step),
        options.patience);
    loader_ = &*loader;
    backend_.forget_loaded();
    while (state_.step < end_ && !stop) {
      stop = make_step(*loader);
      if (!steps_only() && !result_.last_step.stalled) stop = evaluate_and_save(stop);
    }
    // A run that was finished already still says what it reached.
    if (!stop && !steps_only() && evaluations_.last().metrics.samples == 0) stop = evaluate_now();
    result_.finished = state_.step >= end_ && !stop;
    check_folders(world_, input_.folder_fault);
    finish(loader);
    return std::move(result_);
  }

 private:
  bool stop_requested() const { return folder_lost_ || (input_.stop_requested && input_.stop_requested()); }
  bool steps_only() const { return input_.steps_only > 0; }

  /// What is due before the first step of this process. True: some rank was asked to stop.
  bool evaluate_first() {
    if (state_.eval_due) {  // the stop that ended the last process put it off
      const bool best = evaluate_and_rank();
      if (best || state_.eval_due) save(best);
      return state_.eval_due;
    }
    if (steps_only() || !state_.recipe.train.eval_first || state_.step > 0) return false;
    const bool stop = evaluate_now();
    if (stop) save(false);
    return stop;
  }

  /// True: the run stops after it.
  bool make_step(data::TrainLoader& loader) {
    const double lr = recipe::learning_rate(state_.recipe, input_.counts, state_.step);
    const auto start = std::chrono::steady_clock::now();
    const double waited = world_.wait_seconds();
    const std::optional<StageWaits> for_stages = world_.stage_waits();
    const StepResult step = trace_.run([&] {
      return train_step(state_, backend_, world_, loader, input_.sizes.accumulation, lr,
                        [this] { return stop_requested(); });
    });
    if (step.stalled) {
      log_.warn("stopped while waiting for data; this step was not taken");
      result_.last_step.stalled = files_hang_ = true;
      trace_.write_when_done(true);
      if (!steps_only()) save(false);
      return true;
    }
    const double seconds = seconds_since(start);
    state_.seconds += seconds;
    if (!step.skipped.empty()) log_.warn(step.skipped);
    StepTimes times{seconds, loader.take_wait_seconds(), world_.wait_seconds() - waited};
    StepSeconds& in_steps = result_.in_steps;
    in_steps.computed += std::max(0.0, seconds - times.data_wait - times.comm_wait);
    in_steps.waited += times.comm_wait;
    if (for_stages) {
      const StageWaits now = *world_.stage_waits();
      const StageWaits waits{now.for_messages - for_stages->for_messages, now.at_ends - for_stages->at_ends};
      in_steps.stages.for_messages += waits.for_messages;
      in_steps.stages.at_ends += waits.at_ends;
      times.bubble = waits.sum();
    }
    // The vote of the next step, or the stop of this rank alone, takes this to all ranks, and the save after
    // it ends the run.
    folder_lost_ = folder_lost_ ||
                   (telemetry_.is_line(state_.step) && input_.folder_fault && !input_.folder_fault().empty());
    if (!folder_lost_) telemetry_.step(step, lr, times);
    pace_.add(seconds);
    result_.last_step = step;
    // Several ranks agree on a stop by the vote of a step; one rank alone also hears of it after the vote.
    const bool stop = step.stop || (world_.size() == 1 && stop_requested());
    trace_.write_when_done(stop);
    return stop;
  }

  /// `stop`: the run stops in any case. True: it stops.
  bool evaluate_and_save(bool stop) {
    bool best = false;
    state_.eval_due = eval_every_.is_due(state_.step);
    if (state_.eval_due && !stop) {
      best = evaluate_and_rank();
      stop = state_.eval_due;
    }
    if (save_every_.is_due(state_.step) || best || stop) save(best);
    return stop;
  }

  bool evaluate_now() { return evaluations_.evaluate(telemetry_.epoch()); }

  /// Is this the best so far? Stays due when some rank was asked to stop meanwhile.
  bool evaluate_and_rank() {
    state_.eval_due = evaluate_now();
    return !state_.eval_due && evaluations_.take_if_best();
  }

  void save(bool best) {
    if (monitor_ != nullptr) monitor_->status("saving a checkpoint");
    if (state_.data && loader_ != nullptr) state_.data->position = loader_->position(state_.step);
    saver_.save(best);
  }

  void finish(data::Leaving<data::TrainLoader>& loader) {
    result_.broken_train = loader->agreed_broken();
    if (result_.broken_train > 0)
      log_.warn(concat(result_.broken_train, " broken training samples were skipped"));
    result_.checkpoint = saver_.finish();
    result_.saves = saver_.times();
    record_saves();
    result_.last = evaluations_.last();
    result_.train_seconds = state_.seconds;
    result_.images_per_second = telemetry_.images_per_second();
    result_.step_seconds = pace_.seconds();
    pace_.end();
    result_.skipped_steps = state_.guard.skipped() + state_.loss_scale.overflows();
    if (result_.skipped_steps > 0) log_.warn(concat(result_.skipped_steps, " steps were skipped"));
    files_hang_ || evaluations_.files_hang() ? loader.close(data::kBrief) : loader.close();
    result_.stalled = evaluations_.stalled() || loader.left_behind();
    if (result_.stalled) log_.record("threads that wait for images are left behind");
  }

  void record_saves() {
    const SaveTimes& saves = result_.saves;
    if (saves.saves == 0) return;
    log_.record(concat("saves: ", saves.saves, ", training stood still for ", saves.stalled,
                       " s, copies took ", saves.copied, " s, writing ", saves.written, " s"));
  }

  RunState& state_;
  Backend& backend_;
  World& world_;
  const LoopInput& input_;
  monitor::Monitor* monitor_;
  Log& log_;
  const int64_t end_;
  const Every eval_every_, save_every_;
  Saver saver_;
  Telemetry telemetry_;
  StepPace pace_;
  StepTrace trace_;
  Evaluations evaluations_;
  const data::TrainLoader* loader_ = nullptr;  // while the loop runs
  bool files_hang_ = false;                    // some rank gave up waiting for images
  bool folder_lost_ = false;                   // this rank has seen that
  LoopResult result_;
};

}  // namespace

// (More than 5 parameters: state, back end and ranks are interfaces that tests replace one by one.)
LoopResult run(RunState& state, Backend& backend, World& world, const LoopInput& input,
               monitor::Monitor* monitor, Log& log) {
  return Loop(state, backend, world, input, monitor, log).run();
}

}  // namespace tessera::loop
