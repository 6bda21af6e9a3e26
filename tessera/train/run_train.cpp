// SPDX-License-Identifier: Apache-2.0
// `tessera train`: from a recipe to a trained model, a report and a summary.
#include <ATen/ATen.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/process_memory.h"
#include "tessera/base/text.h"
#include "tessera/eager/agreement.h"
#include "tessera/eager/backend.h"
#include "tessera/eager/device.h"
#include "tessera/eager/init_from.h"
#include "tessera/eager/mesh_world.h"
#include "tessera/eager/session.h"
#include "tessera/eager/state.h"
#include "tessera/eager/teacher.h"
#include "tessera/launch/time_limit.h"
#include "tessera/loop/loop.h"
#include "tessera/monitor/monitor.h"
#include "tessera/plan/spans.h"
#include "tessera/profile/rates.h"
#include "tessera/recipe/run_folder.h"
#include "tessera/shard/tensor_memory.h"
#include "tessera/train/commands.h"
#include "tessera/train/dry_run.h"
#include "tessera/train/prepared.h"
#include "tessera/train/resume.h"
#include "tessera/train/run_identity.h"
#include "tessera/train/run_outcome.h"

namespace tessera::train {
namespace fs = std::filesystem;
namespace {

std::string command_of(const TrainJob& job) {
  return job.resume.empty() ? "train" : concat("train --resume ", job.resume);
}

/// A training on one rank. Its methods are its life, in their order.
class TrainRun {
 public:
  TrainRun(const TrainJob& job, const launch::Ranks& ranks) : log_(ranks.speaks()) {
    p_.job = job;
    p_.ranks = ranks;
  }
  TrainRun(const TrainRun&) = delete;
  TrainRun& operator=(const TrainRun&) = delete;

  int run() {
    shard::keep_tensor_memory();
    if (p_.job.dry_run) return dry_run();
    eager::before_meeting(recipe::timeout_of(recipe().run), p_.ranks, [&] { prepare(); });
    meet();
    try {
      const int code = eager::guarded(
          [&] { return train(); }, mesh_, [&] { return where(); },
          eager::savings_hint(eager::memory_savings(recipe(), p_.plan, p_.sizes.per_rank, p_.ranks)));
      if (p_.stalled) {
        // Threads hang in files, with references to what would be destroyed now.
        std::fflush(nullptr);
        std::_Exit(code);
      }
      return code;
    } catch (const std::exception& error) {
      fail(error);
      throw;
    }
  }

 private:
  const recipe::Recipe& recipe() const { return p_.job.recipe; }
  bool is_first() const { return p_.ranks.speaks(); }

  /// What this rank finds out alone: threads, device, plan, data, memory.
  void prepare() {
    p_.threads = eager::set_threads(recipe(), p_.ranks);
    p_.device = eager::choose_device(recipe(), p_.ranks);
    p_.plan = eager::make_plan(recipe(), p_.ranks.world);
    p_.loader = eager::loader_options(recipe(), p_.ranks, p_.threads, log_);
    eager::load_for(p_.plan, &p_.loader);
    eager::deliver_for(p_.device, &p_.loader);
    p_.groups = matched_groups(recipe());
    open_data(p_);
    p_.choices = eager::choose_for_device(recipe(), p_.plan, p_.sizes.per_rank, p_.device);
    p_.predicted_bytes = eager::predicted_memory(
        eager::with_kept_activations(recipe(), p_.choices.keeps_activations), p_.plan, p_.sizes.per_rank);
  }

  int dry_run() {
    prepare();
    if (!p_.job.resume.empty()) record_data(p_);  // what is compared with the checkpoint's
    log_.info(concat("dry run of ", recipe().name, " on ", p_.ranks.world,
                     " ranks; nothing is trained or written"));
    print_facts(p_, log_);
    check_what_opens(p_, log_);
    if (const std::string why = stop_reason(recipe()); !why.empty())
      log_.warn(concat("this run would stop after one step: ", why));
    return kExitDone;
  }

  void meet() {
    const launch::Ranks& ranks = p_.ranks;
    if (ranks.world > launch::available_cores() && is_first() && ranks.local_world == ranks.world)
      log_.warn(concat(ranks.world, " ranks share ", launch::available_cores(), " cores: each will be slow"));
    record_data(p_);
    mesh_ = eager::connect(recipe(), p_.plan, ranks, [&] {
      return eager::joined_facts({{eager::command_fact(command_of(p_.job))},
                                  eager::computing_facts(recipe(), p_.plan, p_.device),
                                  eager::weights_facts("train.init_from", recipe().train.init_from),
                                  eager::weights_facts("distill.teacher", recipe().distill.teacher),
                                  eager::data_facts("data.train", *p_.train, p_.data.train),
                                  eager::data_facts("data.val", *p_.val, p_.data.val)});
    });
  }

  int train() {
    const auto telling = eager::tell_progress(p_.job.files, *mesh_);
    const std::optional<FileLock> lock = take_folder();
    measure_machine();
    build();
    restore();
    open_monitor();
    const loop::LoopResult result = train_loop();
    return steps_only() > 0 ? finish_trial(result) : finish(result);
  }

  /// The run's folder, its log and its checkpoints, which are this run's while the result lives.
  std::optional<FileLock> take_folder() {
    folder_ = agree_on_run_folder(p_, *mesh_);
    p_.run_dir = folder_.path;
    std::optional<FileLock> lock = hold_checkpoints(p_, *mesh_);
    held_ = HeldFolders(folder_, lock);
    p_.checkpoints = recipe::checkpoint_folder(recipe(), p_.run_dir, !p_.job.resume.empty());
    log_.open_file(p_.run_dir / "logs" / concat("rank-", p_.ranks.rank, ".log"));
    log_.info(concat("training ", recipe().name, " in ", p_.run_dir.string()));
    if (!folder_.note.empty()) log_.warn(folder_.note);
    print_facts(p_, log_);
    if (p_.ranks.world > 1) log_.info(concat("  transport between ranks: ", mesh_->world().transport_name()));
    return lock;
  }

  void measure_machine() {
    const auto free = static_cast<double>(launch::available_memory());
    p_.train = eager::with_ram_cache(std::move(p_.train), recipe(),
                                     free - p_.predicted_bytes * static_cast<double>(p_.ranks.local_world),
                                     *mesh_, log_);
    p_.peak_tflops = profile::measure_matmul_tflops(
        eager::resolve_dtype(recipe().precision.compute, p_.device), p_.device);
  }

  void build() {
    // One rank a host looks, before any has taken memory.
    if (!p_.job.force && p_.device.is_cuda())
      eager::check_gpu_memory(recipe(), p_.plan, p_.sizes.per_rank, p_.ranks);
    if (!p_.job.force && p_.device.is_cpu() && p_.ranks.local_rank == 0)
      eager::check_memory(recipe(), p_.plan, p_.sizes.per_rank, p_.ranks);
    mesh_->world().barrier("memory check");
    p_.idle_bytes = resident_bytes();
    p_.idle_shared_bytes = shared_resident_bytes();
    stage_ = "while building the model";
    state_ = eager::assemble(recipe(), p_.plan, *mesh_, /*with_optimizer=*/true, p_.device);
    eager::use_choices(*state_, p_.choices);
    backend_ = std::make_unique<eager::Backend>(*state_, *mesh_);
    stage_.clear();
  }

  /// What the run begins with: its checkpoint, other weights, a teacher.
  void restore() {
    held_.check(*mesh_);  // minutes may have passed since the folders were taken
    if (is_first() && !p_.ranks.pretended()) clear_leftovers(p_.checkpoints);
    mesh_->world().barrier("leftovers");
    const std::vector<std::string>& classes = p_.val->classes();
    if (!p_.job.resume.empty()) resumed_ = resume(p_, *state_, *backend_, *mesh_, log_);
    if (resumed_.empty() && !recipe().train.init_from.empty()) eager::init_from(*state_, log_, classes);
    if (!recipe().distill.teacher.empty())
      state_->teacher = std::make_shared<eager::Teacher>(recipe(), *mesh_, log_, p_.device, classes);
    state_->classes = classes;
    if (!p_.ranks.pretended()) state_->run = identify_run(p_, state_->run, resumed_, *mesh_);
    state_->data = p_.data;
    state_->data->position = p_.loader.start.position;
  }

  void open_monitor() {
    held_.check(*mesh_);
    if (is_first()) {
      const auto kept = resumed_.empty() ? recipe::keep_earlier_start(p_.run_dir) : std::nullopt;
      if (kept)
        log_.info(concat("what an earlier start left without a checkpoint is kept in ", kept->string()));
      monitor_ = std::make_unique<monitor::Monitor>(
          monitor::MonitorOptions{p_.run_dir, p_.counts.total, recipe().train.log_every, state_->step > 0,
                                  state_->step, p_.peak_tflops * static_cast<double>(p_.ranks.world),
                                  recipe().run.wandb, recipe::to_toml(recipe()), recipe().run.timeout / 2},
          log_);
    }
    began_ = true;
    if (is_first()) {
      write_file_atomic(p_.run_dir / "recipe.toml", recipe::to_toml(recipe()));
      write_file_atomic(p_.run_dir / "plan.json", plan::to_json(p_.plan));
      tell_environment(p_, log_);
    }
    if (const std::string why = stop_reason(recipe()); !why.empty())
      log_.warn(concat("this run stops after one step: ", why));
  }

  loop::LoopResult train_loop() {
    const loop::LoopInput input{*p_.train,
                                *p_.val,
                                p_.sizes,
                                p_.counts,
                                p_.loader,
                                p_.checkpoints,
                                launch::stop_or_limit(recipe().run.time_limit, recipe().run.time_margin),
                                steps_only(),
                                is_first() ? p_.run_dir / "trace.json" : fs::path(),
                                pace_teller(),
                                [this] { return held_.fault(); }};
    mesh_->check_refusals();
    eager::MeshWorld world(*mesh_);
    try {
      loop::LoopResult result = loop::run(*state_, *backend_, world, input, monitor_.get(), log_);
      p_.stalled = result.stalled;
      return result;
    } catch (const loop::NonFinite& error) {
      if (steps_only() > 0) throw;
      throw UserError(concat(error.what(), " (", where_to_go_on(p_.checkpoints), ")"));
    }
  }

  /// Says on the first rank how a step compares with its prediction, where there is one.
  std::function<void(double)> pace_teller() {
    if (!is_first() || p_.job.expected_step <= 0) return nullptr;
    return [this](double seconds) { tell_pace(p_, mesh_->rank(), seconds, log_); };
  }

  /// Steps of a run that does nothing else; 0: it is a whole training.
  int64_t steps_only() const { return p_.ranks.pretended() ? p_.job.pretend_steps : p_.job.trial_steps; }

  int finish_trial(const loop::LoopResult& result) {
    held_.check(*mesh_);
    if (result.finished) {
      end_trial(p_, result, *mesh_, log_);
    } else {
      log_.info("stopped early; such a run saves nothing");
    }
    mesh_->world().barrier("the end");
    if (monitor_) monitor_->finish();
    return kExitDone;
  }

  int finish(const loop::LoopResult& of_loop) {
    Finished run{of_loop, {}};
    loop::LoopResult& result = run.result;
    if (result.checkpoint.empty()) result.checkpoint = resumed_;  // nothing was left to train
    held_.check(*mesh_);
    if (result.finished) {
      stage_ = "while writing the summary";
      try {
        run.stages = stage_figures(p_.plan, *mesh_, result.in_steps);
        run.memory = used_memory(p_, *mesh_);
        if (is_first()) {
          write_summary(p_, run, *mesh_);
          write_report(p_, run, *monitor_);
        }
      } catch (const UserError& error) {
        throw UserError(concat(error.what(), " (training is done, and saved in ", result.checkpoint.string(),
                               "; only the summary or the report is missing)"));
      }
    }
    const std::string why = result.finished ? "" : agreed_stop_reason(recipe(), *mesh_);
    mesh_->world().barrier("the end");
    // May wait for a client of the curves: other ranks wait for this one no more.
    if (monitor_) monitor_->finish();
    if (is_first() || !result.finished) say_how_it_ended(p_, run, why, log_);
    return kExitDone;
  }

  /// How far this came, for errors.
  std::string where() const {
    if (!stage_.empty()) return stage_;
    return concat("after step ", state_->step, ", ", backend_->where());
  }

  void fail(const std::exception& error) {
    // The program prints it on the console. That is where a local rank > 0 has its log.
    if (p_.ranks.launcher != "local" || is_first()) log_.record(concat("error: ", error.what()));
    // What the user can mend is told by that line; other faults leave their logs.
    if (!began_ && dynamic_cast<const UserError*>(&error) != nullptr) recipe::discard_run_folder(folder_);
  }

  Log log_;
  Prepared p_;
  std::unique_ptr<mesh::Mesh> mesh_;
  recipe::RunFolder folder_;
  HeldFolders held_;
  std::unique_ptr<eager::TrainState> state_;
  std::unique_ptr<eager::Backend> backend_;
  fs::path resumed_;  // the checkpoint that it goes on from; empty: none
  std::unique_ptr<monitor::Monitor> monitor_;
  bool began_ = false;                           // files of the run are written
  std::string stage_ = "before the first step";  // empty: the loop runs
};

}  // namespace

int train(const TrainJob& job, const launch::Ranks& ranks) { return TrainRun(job, ranks).run(); }

}  // namespace tessera::train
