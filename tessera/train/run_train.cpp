// SPDX-License-Identifier: Apache-2.0
// `tessera train`: from a recipe to a trained model, a report and a summary.
#include <ATen/ATen.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/json_text.h"
#include "tessera/base/process_memory.h"
#include "tessera/base/text.h"
#include "tessera/base/version.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/names.h"
#include "tessera/checkpoint/saved_by.h"
#include "tessera/eager/agreement.h"
#include "tessera/eager/backend.h"
#include "tessera/eager/device.h"
#include "tessera/eager/init_from.h"
#include "tessera/eager/mesh_world.h"
#include "tessera/eager/session.h"
#include "tessera/eager/state.h"
#include "tessera/eager/teacher.h"
#include "tessera/launch/surroundings.h"
#include "tessera/launch/time_limit.h"
#include "tessera/loop/loop.h"
#include "tessera/loop/train_step.h"
#include "tessera/monitor/monitor.h"
#include "tessera/monitor/number.h"
#include "tessera/monitor/report.h"
#include "tessera/profile/rates.h"
#include "tessera/recipe/run_folder.h"
#include "tessera/shard/tensor_memory.h"
#include "tessera/train/commands.h"
#include "tessera/train/dry_run.h"
#include "tessera/train/environment.h"
#include "tessera/train/prepared.h"
#include "tessera/train/resume.h"

namespace tessera::train {
namespace fs = std::filesystem;
namespace {

/// What to do after numbers that ended the run: what is saved last may be ruined as well.
std::string where_to_go_on(const fs::path& checkpoints) {
  std::set<int64_t> steps;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(checkpoints, ignored)) {
    const auto step = checkpoint::names::parse_step(entry.path().filename().string());
    if (step && fs::exists(entry.path() / checkpoint::names::kManifest, ignored)) steps.insert(*step);
  }
  if (steps.empty()) return "no checkpoint is saved: start anew";
  const auto newest = std::prev(steps.end());
  if (newest == steps.begin()) {
    return concat("--resume goes on from step ", *newest,
                  ", the only checkpoint; start anew if that is ruined too");
  }
  return concat("--resume goes on from step ", *newest, "; if that is ruined too, --resume ",
                *std::prev(newest), " from an earlier one");
}

/// What this rank sent, by axis (the control messages of all ranks are "world") and kind.
nlohmann::ordered_json communication(mesh::Mesh& mesh) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  const auto add = [&](mesh::Group& group) {
    for (const auto& [kind, counted] : group.traffic()) {
      json[group.axis()][kind] = {{"calls", counted.calls},
                                  {"bytes_sent", counted.bytes_sent},
                                  {"wait_seconds", counted.wait_seconds}};
    }
  };
  for (const mesh::Axis& axis : mesh.axes()) add(mesh.group(axis.name));
  add(mesh.world());
  return json;
}

/// Of the largest rank: its peak, what of it training took without messages shared on the host, and what was
/// predicted for that.
nlohmann::ordered_json memory_used(const Prepared& p, mesh::Mesh& mesh) {
  const auto largest = [&](int64_t mine) {
    const auto all = mesh.world().all_gather_text(std::to_string(mine), "peak memory");
    const auto value = [](const std::string& text) { return std::stoll(text); };
    return value(*std::ranges::max_element(all, {}, value));
  };
  // (A rank's messages stay resident until the end, so they are part of its peak.)
  const int64_t peak = peak_resident_bytes(),
                training = peak - p.idle_bytes - (shared_resident_bytes() - p.idle_shared_bytes);
  nlohmann::ordered_json json = {{"peak_rss_bytes", largest(peak)},
                                 {"training_memory_bytes", largest(training)},
                                 {"predicted_memory_bytes", static_cast<int64_t>(p.predicted_bytes)}};
  if (const auto there = eager::device_memory(p.device))
    json["device_peak_bytes"] = largest(there->peak_bytes);
  return json;
}

/// A pretended run has trained nothing: it says what a step costs, and no accuracy.
void end_pretended(const Prepared& p, const loop::LoopResult& result, mesh::Mesh& mesh, Log& log) {
  const int64_t steps = p.job.pretend_steps;
  const nlohmann::ordered_json memory = memory_used(p, mesh);
  nlohmann::ordered_json summary = {
      {"pretended", true},
      {"rank", mesh.rank()},
      {"world_size", p.ranks.world},
      {"steps", steps},
      {"loss", result.last_step.loss},
      {"gradient_norm", result.last_step.gradient_norm},
      {"train_seconds", result.train_seconds},
      {"parameters", arch::parameter_count(p.job.recipe.model)},
      {"communication", communication(mesh)},
      {"plan", nlohmann::ordered_json::parse(plan::to_json(p.plan))},
  };
  summary.update(memory);
  write_file_atomic(p.run_dir / "summary.json", json_text(summary, 2) + "\n");
  log.info(concat("done: pretended to be ", mesh.describe(), " for ", steps, steps == 1 ? " step" : " steps",
                  ": loss ", monitor::print("%g", result.last_step.loss), ", ",
                  human_seconds(result.train_seconds), ", peak memory ",
                  human_bytes(memory.at("peak_rss_bytes").get<double>())));
  log.info("  nothing is trained or saved: what other ranks would have sent were copies of this rank's");
  log.info(concat("  summary    ", (p.run_dir / "summary.json").string()));
}

/// Of this process' steps. Where it made none, of those of the process that wrote the summary before; else
/// null.
nlohmann::json images_per_second(const Prepared& p, const loop::LoopResult& result) {
  if (result.images_per_second) return *result.images_per_second;
  std::error_code ignored;
  const fs::path before = p.run_dir / "summary.json";
  if (!fs::is_regular_file(before, ignored)) return nullptr;
  const auto summary = nlohmann::json::parse(read_file(before), nullptr, false);
  return summary.is_object() ? summary.value("images_per_second", nlohmann::json()) : nlohmann::json();
}

void write_summary(const Prepared& p, const loop::LoopResult& result, mesh::Mesh& mesh) {
  const nlohmann::ordered_json memory = memory_used(p, mesh);
  if (mesh.rank() != 0) return;
  const nlohmann::ordered_json traffic = communication(mesh);
  const auto& metrics = result.last.metrics;
  nlohmann::ordered_json summary = {
      {"val_top1", metrics.top1},
      {"val_top5", metrics.top5},
      {"val_loss", metrics.loss},
      {"val_samples", metrics.samples},
      {"broken_train_samples", result.broken_train},
      {"skipped_steps", result.skipped_steps},
      {"broken_val_samples", result.last.figures.broken},
      {"train_seconds", result.train_seconds},
      {"images_per_second", images_per_second(p, result)},
      {"steps", p.counts.total},
      {"world_size", p.ranks.world},
      {"parameters", arch::parameter_count(p.job.recipe.model)},
      {"checkpoint", result.checkpoint.string()},
      {"checkpoint_saves",
       {{"saves", result.saves.saves},
        {"copied_seconds", result.saves.copied},
        {"stalled_seconds", result.saves.stalled},
        {"written_seconds", result.saves.written}}},
      {"transport", mesh.world().transport_name()},
      {"communication", traffic},
      {"plan", nlohmann::ordered_json::parse(plan::to_json(p.plan))},
  };
  if (metrics.top1_ema) {
    summary["val_top1_ema"] = *metrics.top1_ema;
    summary["val_loss_ema"] = metrics.loss_ema.value_or(0);
  }
  summary.update(memory);
  write_file_atomic(p.run_dir / "summary.json", json_text(summary, 2) + "\n");
}

void write_report(const Prepared& p, const loop::LoopResult& result, const monitor::Monitor& monitor) {
  monitor::ReportInput report;
  report.title = p.job.recipe.name;
  report.facts = facts(p);
  report.facts.emplace_back("training time", human_seconds(result.train_seconds));
  report.facts.emplace_back("skipped steps", human_count(result.skipped_steps));
  report.steps = monitor.steps();
  report.evals = monitor.evals();
  report.statistics = monitor::read_statistics(p.run_dir / "statistics.jsonl");
  report.classes = p.val->classes();
  report.confusion = result.last.figures.confusion;
  report.samples = result.last.samples;
  report.skipped_steps = result.skipped_steps;
  report.environment = environment_rows(p.ranks, p.threads);
  report.recipe_toml = recipe::to_toml(p.job.recipe);
  monitor::write_report(p.run_dir / "report.html", report);
}

std::string stop_reason(const recipe::Recipe& recipe) {
  return launch::stop_reason(recipe.run.time_limit, recipe.run.time_margin);
}

/// Why this run stops: this rank's reason, else that of the first rank that has one. Collective.
std::string agreed_stop_reason(const recipe::Recipe& recipe, mesh::Mesh& mesh) {
  const std::string mine = stop_reason(recipe);
  const auto reasons = mesh.world().all_gather_text(mine, "reason of the stop");
  if (!mine.empty()) return mine;
  const auto with_reason = std::ranges::count_if(reasons, [](const auto& reason) { return !reason.empty(); });
  const auto first = std::ranges::find_if(reasons, [](const auto& reason) { return !reason.empty(); });
  if (first == reasons.end()) return "a rank was asked to stop";
  return concat("rank ", first - reasons.begin(), ": ", *first,
                with_reason > 1 ? concat(" (and ", with_reason - 1, " more ranks)") : "");
}

/// `why`: of a run that stops early.
void say_how_it_ended(const Prepared& p, const loop::LoopResult& result, const std::string& why, Log& log) {
  if (!result.finished) {
    log.info(concat("stopped early; state saved in ", result.checkpoint.string()));
    log.info(concat("reason of the stop: ", why));
    log.info(concat("continue with tessera train --resume ", p.run_dir.string(), ", on any number of ranks"));
    return;
  }
  const std::string line = monitor::print(
      "val top-1 %.2f %%, top-5 %.2f %%, loss %.4f over %ld images", result.last.metrics.top1,
      result.last.metrics.top5, result.last.metrics.loss, static_cast<long>(result.last.metrics.samples));
  log.info(concat("done: ", line));
  log.info(concat("  trained for ", human_seconds(result.train_seconds),
                  result.images_per_second
                      ? concat(" at ", static_cast<int64_t>(*result.images_per_second), " images/s")
                      : ", before this start"));
  log.info(concat("  checkpoint ", result.checkpoint.string()));
  log.info(concat("  report     ", (p.run_dir / "report.html").string()));
  log.info(concat("  summary    ", (p.run_dir / "summary.json").string()));
}

/// All ranks write into the folder that rank 0 took, and holds. A rank on another disk makes its own of that
/// name. Pretended runs have names of their own: real ones do not count them.
recipe::RunFolder agree_on_run_folder(const Prepared& p, mesh::Mesh& mesh) {
  recipe::RunFolder folder;
  if (mesh.rank() == 0) {
    recipe::Recipe named = p.job.recipe;
    if (p.ranks.pretended()) named.name += "-pretended";
    folder = recipe::claim_run_folder(named, p.job.resume);
  }
  const std::string path = mesh.world().all_gather_text(folder.path.string(), "run folder").front();
  if (mesh.rank() != 0) folder = recipe::create_run_folder(path);
  return folder;
}

/// Keeps other runs out of the folder of checkpoints. Collective: all ranks fail with the first rank's error.
std::optional<FileLock> hold_checkpoints(const Prepared& p, mesh::Mesh& mesh) {
  std::optional<FileLock> lock;
  std::string holder;
  const auto agree = [&](bool mine) {
    std::string error;
    try {
      if (mine) lock = recipe::lock_checkpoints(p.job.recipe, p.run_dir, holder);
    } catch (const UserError& failed) {
      error = failed.what();
    }
    for (const std::string& text : mesh.world().all_gather_text(error, "lock of the checkpoints"))
      if (!text.empty()) throw UserError(text);
  };
  if (mesh.rank() == 0) {
    holder = concat("the run in ", p.run_dir.string(), " (process ", ::getpid(), " on host ",
                    launch::host_name(), ")");
  }
  holder = mesh.world().all_gather_text(holder, "run").front();
  agree(mesh.rank() == 0);
  agree(mesh.rank() != 0 && p.ranks.local_rank == 0);  // of hosts with folders of their own
  return lock;
}

/// What cannot be read or removed stays: looking for a checkpoint says why, on all ranks.
void clear_leftovers(const fs::path& checkpoints) {
  try {
    checkpoint::clear_leftovers(checkpoints);
  } catch (const UserError&) {
    return;
  }
}

/// Gives the run the id that its checkpoints carry: the folder's, else that of the run's own checkpoint that
/// it goes on from, else a new one. Collective: a folder of each host gets the same.
void identify_run(const Prepared& p, eager::TrainState& state, const fs::path& resumed, mesh::Mesh& mesh) {
  std::string id;
  if (mesh.rank() == 0) {
    id = checkpoint::run_id(p.run_dir);
    if (id.empty() && !resumed.empty() && resumed.parent_path() == fs::absolute(p.checkpoints))
      id = state.run.id;
    if (id.empty()) id = checkpoint::new_run_id();
  }
  id = mesh.world().all_gather_text(id, "run id").front();
  state.run = {id, p.run_dir.string()};
  if (p.ranks.local_rank == 0 && checkpoint::run_id(p.run_dir) != id)
    write_file_atomic(p.run_dir / checkpoint::kRunId, id + "\n");
}

/// environment.json, and what has changed since the run that is resumed wrote it.
void tell_environment(const Prepared& p, Log& log) {
  const fs::path file = p.run_dir / "environment.json";
  const std::string now = environment_json(p.ranks, p.threads);
  std::error_code ignored;
  if (fs::exists(file, ignored)) {
    for (const std::string& line : launch::changes_since(read_file(file), now)) {
      log.warn(concat("since this run was last started: ", line));
    }
  }
  write_file_atomic(file, now);
}

/// `state`, `began` and `where` belong to the caller: after an error they say how far this came.
int train_in_mesh(Prepared& p, mesh::Mesh& mesh, std::unique_ptr<eager::TrainState>& state, bool& began,
                  Log& log, std::function<std::string()>& where) {
  const bool first = mesh.rank() == 0;
  // One rank a host looks, before any has taken memory.
  if (!p.job.force && p.device.is_cuda())
    eager::check_gpu_memory(p.job.recipe, p.plan, p.sizes.per_rank, p.ranks);
  if (!p.job.force && p.device.is_cpu() && p.ranks.local_rank == 0) {
    eager::check_memory(p.job.recipe, p.plan, p.sizes.per_rank, p.ranks);
  }
  mesh.world().barrier("memory check");
  p.idle_bytes = resident_bytes();
  p.idle_shared_bytes = shared_resident_bytes();
  where = [] { return "while building the model"; };
  state = eager::assemble(p.job.recipe, p.plan, mesh, /*with_optimizer=*/true, p.device);
  eager::use_choices(*state, p.choices);
  where = [&state] { return concat("after step ", state->step, ", unit ", state->sharded->current_unit()); };
  if (first && !p.ranks.pretended()) clear_leftovers(p.checkpoints);
  mesh.world().barrier("leftovers");
  fs::path resumed;
  if (!p.job.resume.empty()) resumed = resume(p, *state, mesh, log);
  if (resumed.empty() && !p.job.recipe.train.init_from.empty())
    eager::init_from(*state, log, p.val->classes());
  if (!p.job.recipe.distill.teacher.empty()) {
    state->teacher = std::make_shared<eager::Teacher>(p.job.recipe, mesh, log, p.device, p.val->classes());
  }
  state->classes = p.val->classes();
  if (!p.ranks.pretended()) identify_run(p, *state, resumed, mesh);
  state->data = p.data;
  state->data->position = p.loader.start.position;
  std::unique_ptr<monitor::Monitor> monitor;
  if (first) {
    const auto kept = resumed.empty() ? recipe::keep_earlier_start(p.run_dir) : std::nullopt;
    if (kept) log.info(concat("what an earlier start left without a checkpoint is kept in ", kept->string()));
    monitor = std::make_unique<monitor::Monitor>(
        monitor::MonitorOptions{p.run_dir, p.counts.total, p.job.recipe.train.log_every, state->step > 0,
                                state->step, p.peak_tflops * static_cast<double>(p.ranks.world),
                                p.job.recipe.run.wandb, recipe::to_toml(p.job.recipe),
                                p.job.recipe.run.timeout / 2},
        log);
  }
  began = true;
  if (first) {
    write_file_atomic(p.run_dir / "recipe.toml", recipe::to_toml(p.job.recipe));
    write_file_atomic(p.run_dir / "plan.json", plan::to_json(p.plan));
    tell_environment(p, log);
  }
  if (const std::string why = stop_reason(p.job.recipe); !why.empty()) {
    log.warn(concat("this run stops after one step: ", why));
  }
  const bool pretended = p.ranks.pretended();
  const loop::LoopInput input{
      *p.train,
      *p.val,
      p.sizes,
      p.counts,
      p.loader,
      p.checkpoints,
      launch::stop_or_limit(p.job.recipe.run.time_limit, p.job.recipe.run.time_margin),
      pretended ? p.job.pretend_steps : 0,
      p.run_dir / "trace.json"};
  mesh.check_refusals();
  loop::LoopResult result;
  try {
    eager::MeshWorld world(mesh);
    eager::Backend backend(*state, mesh);
    result = loop::run(*state, backend, world, input, monitor.get(), log);
  } catch (const loop::NonFinite& error) {
    if (pretended) throw;
    throw UserError(concat(error.what(), " (", where_to_go_on(p.checkpoints), ")"));
  }
  p.stalled = result.stalled;
  if (pretended) {
    monitor->finish();
    if (result.finished) {
      end_pretended(p, result, mesh, log);
    } else {
      log.info("stopped early; a pretended run saves nothing");
    }
    return kExitDone;
  }
  if (result.checkpoint.empty()) result.checkpoint = resumed;  // nothing was left to train
  if (result.finished) {
    where = [] { return "while writing the summary"; };
    try {
      write_summary(p, result, mesh);
      if (first) write_report(p, result, *monitor);
    } catch (const UserError& error) {
      throw UserError(concat(error.what(), " (training is done, and saved in ", result.checkpoint.string(),
                             "; only the summary or the report is missing)"));
    }
  }
  const std::string why = result.finished ? "" : agreed_stop_reason(p.job.recipe, mesh);
  mesh.world().barrier("the end");
  if (monitor)
    monitor->finish();  // may wait for a client of the curves, and nobody waits for this rank any more
  if (first || !result.finished) say_how_it_ended(p, result, why, log);
  return kExitDone;
}

std::string command_of(const TrainJob& job) {
  return job.resume.empty() ? "train" : concat("train --resume ", job.resume);
}

}  // namespace

int train(const TrainJob& job, const launch::Ranks& ranks) {
  Log log(ranks.rank == 0);
  Prepared p;
  p.job = job;
  p.ranks = ranks;
  shard::keep_tensor_memory();
  const auto prepare = [&] {
    p.threads = eager::set_threads(job.recipe, ranks);
    p.device = eager::choose_device(job.recipe, ranks);
    p.plan = eager::make_plan(job.recipe, ranks.world);
    p.loader = eager::loader_options(job.recipe, ranks, p.threads, log);
    eager::deliver_for(p.device, &p.loader);
    p.groups = matched_groups(job.recipe);
    open_data(p);
    p.choices = eager::choose_for_device(job.recipe, p.plan, p.sizes.per_rank, p.device);
    p.predicted_bytes = eager::predicted_memory(
        eager::with_kept_activations(job.recipe, p.choices.keeps_activations), p.plan, p.sizes.per_rank);
  };
  if (job.dry_run) {
    prepare();
    if (!job.resume.empty()) record_data(p);  // what is compared with the checkpoint's
    log.info(
        concat("dry run of ", job.recipe.name, " on ", ranks.world, " ranks; nothing is trained or written"));
    print_facts(p, log);
    check_what_opens(p, log);
    if (const std::string why = stop_reason(job.recipe); !why.empty())
      log.warn(concat("this run would stop after one step: ", why));
    return kExitDone;
  }
  eager::before_meeting(job.recipe, ranks, prepare);
  if (ranks.world > launch::available_cores() && ranks.rank == 0 && ranks.local_world == ranks.world) {
    log.warn(concat(ranks.world, " ranks share ", launch::available_cores(), " cores: each will be slow"));
  }
  record_data(p);
  auto mesh = eager::connect(job.recipe, ranks, [&] {
    return eager::joined_facts({{eager::command_fact(command_of(job))},
                                eager::computing_facts(job.recipe, p.plan, p.device),
                                eager::weights_facts("train.init_from", job.recipe.train.init_from),
                                eager::weights_facts("distill.teacher", job.recipe.distill.teacher),
                                eager::data_facts("data.train", *p.train, p.data.train),
                                eager::data_facts("data.val", *p.val, p.data.val)});
  });
  std::unique_ptr<eager::TrainState> state;
  recipe::RunFolder folder;
  bool began = false;
  std::function<std::string()> where = [] { return "before the first step"; };
  try {
    const int code = eager::guarded(
        [&] {
          const auto telling = eager::tell_progress(job.files, *mesh);
          folder = agree_on_run_folder(p, *mesh);
          p.run_dir = folder.path;
          const auto lock = hold_checkpoints(p, *mesh);
          p.checkpoints = recipe::checkpoint_folder(job.recipe, p.run_dir, !job.resume.empty());
          log.open_file(p.run_dir / "logs" / concat("rank-", ranks.rank, ".log"));
          log.info(concat("training ", job.recipe.name, " in ", p.run_dir.string()));
          if (!folder.note.empty()) log.warn(folder.note);
          print_facts(p, log);
          if (ranks.world > 1) log.info(concat("  ranks talk through: ", mesh->world().transport_name()));
          const auto free = static_cast<double>(launch::available_memory());
          p.train = eager::with_ram_cache(std::move(p.train), job.recipe,
                                          free - p.predicted_bytes * static_cast<double>(ranks.local_world),
                                          *mesh, log);
          p.peak_tflops = profile::measure_matmul_tflops(
              eager::resolve_dtype(job.recipe.precision.compute, p.device), p.device);
          return train_in_mesh(p, *mesh, state, began, log, where);
        },
        *mesh, where, eager::memory_savings(job.recipe, p.plan, p.sizes.per_rank, ranks));
    if (p.stalled) {
      // Threads hang in files, with references to what would be destroyed now.
      std::fflush(nullptr);
      std::_Exit(code);
    }
    return code;
  } catch (const std::exception& error) {
    // The program prints it on the console. That is where a local rank > 0 has its log.
    if (ranks.launcher != "local" || ranks.rank == 0) log.record(concat("error: ", error.what()));
    // What the user can mend is told by that line; other faults leave their logs.
    if (!began && dynamic_cast<const UserError*>(&error) != nullptr) recipe::discard_run_folder(folder);
    static_cast<void>(mesh.release());  // a broken group's destructor may wait for ranks that are gone
    throw;
  }
}

}  // namespace tessera::train
