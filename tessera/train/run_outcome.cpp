// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/run_outcome.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/json_text.h"
#include "tessera/base/process_memory.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/eager/device.h"
#include "tessera/eager/recorded_step.h"
#include "tessera/eager/teacher.h"
#include "tessera/launch/time_limit.h"
#include "tessera/monitor/number.h"
#include "tessera/monitor/report.h"
#include "tessera/plan/memory.h"
#include "tessera/plan/spans.h"
#include "tessera/recipe/cost_inputs.h"
#include "tessera/train/environment.h"

namespace tessera::train {
namespace fs = std::filesystem;
namespace {

/// What this rank sent, by group (the control messages of all ranks are "world") and kind.
nlohmann::ordered_json communication(mesh::Mesh& mesh) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  const auto add = [&](const mesh::Group& group) {
    for (const auto& [kind, counted] : group.traffic()) {
      json[group.name()][kind] = {{"calls", counted.calls},
                                  {"bytes_sent", counted.bytes_sent},
                                  {"wait_seconds", counted.wait_seconds}};
    }
  };
  for (const mesh::Group* group : mesh.groups()) add(*group);
  return json;
}

/// Of a pipeline's stage, where the run's prediction is of the one that needs most.
double predicted_of_rank(const Prepared& p, int64_t rank) {
  plan::CostInputs inputs = eager::cost_inputs(
      eager::with_kept_activations(p.job.recipe, p.choices.keeps_activations), p.ranks.world, p.device);
  inputs.records_passes = p.choices.graphs != recipe::CudaGraphs::kOff &&
                          eager::why_not_recorded(p.job.recipe, p.plan, p.device).empty();
  inputs.records_update = inputs.records_passes && p.choices.graphs == recipe::CudaGraphs::kStep &&
                          recipe::updates_without_host(p.job.recipe.optimizer);
  const auto stages = plan::predict_stage_memory(p.job.recipe.model, p.plan, inputs, p.sizes.per_rank);
  const double own = stages[static_cast<size_t>(plan::stage_of(p.plan, rank))].total();
  if (!p.device.is_cpu()) {  // a checkpoint's copy lies in the host's memory
    return own + eager::teacher_bytes(p.job.recipe, p.ranks.world, p.sizes.per_rank, p.device);
  }
  const double most = std::ranges::max_element(stages, {}, &plan::Memory::total)->total();
  return p.predicted_bytes - most + own;
}

nlohmann::ordered_json to_json(const UsedMemory& memory) {
  nlohmann::ordered_json json = {{"peak_rss_bytes", memory.peak},
                                 {"training_memory_bytes", memory.training},
                                 {"predicted_memory_bytes", memory.predicted}};
  if (memory.device) {
    json["device_peak_bytes"] = memory.device->peak;
    json["predicted_device_bytes"] = memory.device->predicted;
  }
  return json;
}

/// Null without a step.
nlohmann::json step_seconds(const loop::LoopResult& result) {
  return result.step_seconds ? nlohmann::json(*result.step_seconds) : nlohmann::json();
}

/// "0.512 s measured, 0.498 s predicted (2.7 % too little)". Of the measured value, as errors of predictions
/// are.
std::string beside_prediction(const std::string& measured, const std::string& predicted, double error) {
  return concat(measured, " measured, ", predicted, " predicted (",
                monitor::print("%.1f", 100 * std::abs(error)), error < 0 ? " % too little)" : " % too much)");
}

double error_of(double predicted, double measured) { return predicted / measured - 1; }

std::string step_text(const Prepared& p, double seconds) {
  return beside_prediction(monitor::print("%.4f s", seconds), monitor::print("%.4f s", p.job.expected_step),
                           error_of(p.job.expected_step, seconds));
}

std::string memory_text(double measured, double predicted) {
  return beside_prediction(human_bytes(measured), human_bytes(predicted), error_of(predicted, measured));
}

/// Of the memory that was predicted: a GPU's, or the host's.
std::string memory_text(const UsedMemory& memory) {
  return memory.device
             ? memory_text(static_cast<double>(memory.device->peak),
                           static_cast<double>(memory.device->predicted))
             : memory_text(static_cast<double>(memory.training), static_cast<double>(memory.predicted));
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

}  // namespace

UsedMemory used_memory(const Prepared& p, mesh::Mesh& mesh) {
  const auto largest = [&](int64_t mine) {
    const auto all = mesh.world().all_gather_text(std::to_string(mine), "peak memory");
    const auto value = [](const std::string& text) { return std::stoll(text); };
    return value(*std::ranges::max_element(all, {}, value));
  };
  // (A rank's messages stay resident until the end, so they are part of its peak.)
  UsedMemory memory{.peak = largest(peak_resident_bytes()),
                    .training = largest(MemoryBefore{p.idle_bytes, p.idle_shared_bytes}.peak_growth()),
                    .predicted = static_cast<int64_t>(p.predicted_bytes)};
  if (const auto there = eager::device_memory(p.device)) {
    const int64_t peak = largest(there->peak_bytes);
    memory.device = {peak, largest(static_cast<int64_t>(predicted_of_rank(p, mesh.rank())))};
  }
  return memory;
}

std::string where_to_go_on(const fs::path& checkpoints) try {
  const std::set<int64_t> steps = checkpoint::complete_steps(checkpoints);
  if (steps.empty()) return "no checkpoint is saved: start anew";
  const auto newest = std::prev(steps.end());
  if (newest == steps.begin()) {
    return concat("--resume goes on from step ", *newest,
                  ", the only checkpoint; start anew if that is ruined too");
  }
  return concat("--resume goes on from step ", *newest, "; if that is ruined too, --resume ",
                *std::prev(newest), " from an earlier one");
} catch (const UserError&) {
  return concat("the checkpoints in ", checkpoints.string(), " cannot be read");
}

void end_trial(const Prepared& p, const loop::LoopResult& result, mesh::Mesh& mesh, Log& log) {
  const bool pretended = p.ranks.pretended();
  const int64_t steps = pretended ? p.job.pretend_steps : p.job.trial_steps;
  const nlohmann::ordered_json memory = to_json(used_memory(p, mesh));
  if (!p.ranks.speaks()) return;
  nlohmann::ordered_json summary = {
      {"pretended", pretended},
      {"rank", mesh.rank()},
      {"world_size", p.ranks.world},
      {"steps", steps},
      {"loss", result.last_step.loss},
      {"gradient_norm", result.last_step.gradient_norm},
      {"train_seconds", result.train_seconds},
      {"step_seconds", step_seconds(result)},
      {"parameters", arch::parameter_count(p.job.recipe.model)},
      {"communication", communication(mesh)},
      {"plan", nlohmann::ordered_json::parse(plan::to_json(p.plan))},
  };
  summary.update(memory);
  if (pretended) {
    summary["network"] = {{"bytes_per_second", p.ranks.network.bytes_per_second},
                          {"latency", p.ranks.network.latency}};
  }
  if (pretended && p.plan.stages > 1) {
    summary["stage"] = plan::stage_of(p.plan, mesh.rank());
    summary["predicted_memory_bytes"] = static_cast<int64_t>(predicted_of_rank(p, mesh.rank()));
  }
  write_file_atomic(p.run_dir / "summary.json", json_text(summary, 2) + "\n");
  log.info(concat("done: ", pretended ? concat("pretended to be ", mesh.describe()) : "tried", " for ", steps,
                  steps == 1 ? " step" : " steps", ": loss ", monitor::print("%g", result.last_step.loss),
                  ", ", human_seconds(result.train_seconds), ", peak memory ",
                  human_bytes(memory.at("peak_rss_bytes").get<double>()),
                  memory.contains("device_peak_bytes")
                      ? concat(", of the GPU ", human_bytes(memory.at("device_peak_bytes").get<double>()))
                      : ""));
  log.info(pretended
               ? "  nothing is trained or saved: what other ranks would have sent were copies of this rank's"
               : "  nothing is evaluated or saved");
  log.info(concat("  summary    ", (p.run_dir / "summary.json").string()));
}

void tell_pace(const Prepared& p, int64_t rank, double seconds, Log& log) {
  constexpr double kFar = 0.1;
  const auto there = eager::device_memory(p.device);
  const auto bytes = static_cast<double>(
      there ? there->peak_bytes : MemoryBefore{p.idle_bytes, p.idle_shared_bytes}.peak_growth());
  const double predicted_bytes = predicted_of_rank(p, rank);
  const std::string line = concat("a step takes ", step_text(p, seconds), "; memory of this rank ",
                                  memory_text(bytes, predicted_bytes));
  const bool is_far =
      std::abs(error_of(p.job.expected_step, seconds)) > kFar || bytes > (1 + kFar) * predicted_bytes;
  is_far ? log.warn(concat(line, ": measure again with tessera plan profile if the machine has changed"))
         : log.info(line);
}

void write_summary(const Prepared& p, const Finished& run, mesh::Mesh& mesh) {
  const loop::LoopResult& result = run.result;
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
      {"step_seconds", step_seconds(result)},
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
  if (p.job.expected_step > 0) summary["predicted_step_seconds"] = p.job.expected_step;
  if (metrics.top1_ema) {
    summary["val_top1_ema"] = *metrics.top1_ema;
    summary["val_loss_ema"] = metrics.loss_ema.value_or(0);
  }
  for (const StageFigures& stage : run.stages) {
    summary["stages"].push_back({{"stage", stage.name},
                                 {"computed_seconds", stage.computed},
                                 {"waited_for_stages_seconds", stage.waited_for_stages},
                                 {"waited_for_ranks_seconds", stage.waited_for_ranks},
                                 {"peak_rss_bytes", stage.peak_bytes}});
  }
  summary.update(to_json(run.memory));
  write_file_atomic(p.run_dir / "summary.json", json_text(summary, 2) + "\n");
}

void write_report(const Prepared& p, const Finished& run, const monitor::Monitor& monitor) {
  const loop::LoopResult& result = run.result;
  monitor::ReportInput report;
  report.title = p.job.recipe.name;
  report.facts = facts(p);
  report.facts.emplace_back("training time", human_seconds(result.train_seconds));
  if (p.job.expected_step > 0 && result.step_seconds)
    report.facts.emplace_back("step", step_text(p, *result.step_seconds));
  report.facts.emplace_back("memory of the largest rank", memory_text(run.memory));
  report.facts.emplace_back("skipped steps", human_count(result.skipped_steps));
  for (const StageFigures& stage : run.stages) {
    report.facts.emplace_back(
        stage.name, concat("computed ", human_seconds(stage.computed), ", waited ",
                           human_seconds(stage.waited_for_stages), " for other stages and ",
                           human_seconds(stage.waited_for_ranks), " for other ranks of its own; peak memory ",
                           human_bytes(static_cast<double>(stage.peak_bytes))));
  }
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

void say_how_it_ended(const Prepared& p, const Finished& run, const std::string& why, Log& log) {
  const loop::LoopResult& result = run.result;
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
  const bool is_first_start = p.job.resume.empty();
  log.info(concat("  trained for ", human_seconds(result.train_seconds),
                  result.images_per_second
                      ? concat(is_first_start ? " at " : " in all, since this start at ",
                               static_cast<int64_t>(*result.images_per_second), " images/s")
                      : ", before this start"));
  if (!run.stages.empty()) log.info(concat("  ", slowest_stage_text(run.stages)));
  log.info(concat("  checkpoint ", result.checkpoint.string()));
  log.info(concat("  report     ", (p.run_dir / "report.html").string()));
  log.info(concat("  summary    ", (p.run_dir / "summary.json").string()));
}

}  // namespace tessera::train
