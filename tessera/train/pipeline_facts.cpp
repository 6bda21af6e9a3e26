// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/pipeline_facts.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>

#include "tessera/base/process_memory.h"
#include "tessera/base/text.h"
#include "tessera/eager/session.h"
#include "tessera/monitor/number.h"
#include "tessera/plan/draw_schedule.h"
#include "tessera/plan/memory.h"
#include "tessera/plan/schedule.h"
#include "tessera/plan/spans.h"
#include "tessera/plan/traffic.h"
#include "tessera/recipe/make_plan.h"

namespace tessera::train {
namespace {

using Rows = std::vector<std::pair<std::string, std::string>>;

constexpr int64_t kColumns = 96;
constexpr int64_t kMostPasses = 1'000'000;  // of more the dry run would take long
constexpr int64_t kStagesShown = 16;        // of more the first and the last ones are

/// Of a pass of each virtual stage as shares of a whole model's forward pass: a backward pass takes twice as
/// long, and what is recomputed once more.
plan::PassCosts costs_of(const Prepared& p) {
  const std::vector<double> flops = arch::unit_flops(p.job.recipe.model);
  const double all = std::accumulate(flops.begin(), flops.end(), 0.0);
  plan::PassCosts costs;
  for (int64_t stage = 0; stage < p.plan.stages * p.plan.virtual_stages; ++stage) {
    const auto [begin, end] = plan::units_of_virtual_stage(p.plan, stage);
    double forward = 0, backward = 0;
    for (size_t i = begin; i < end; ++i) {
      forward += flops[i] / all;
      backward += flops[i] / all * (p.plan.units[i].recomputes() ? 3 : 2);
    }
    costs.forward.push_back(forward);
    costs.backward.push_back(backward);
  }
  return costs;
}

/// `ranks`: of all ranks [seconds waited for messages, at ends, in other collectives; peak bytes; seconds
/// computed].
StageFigures figures_of(const plan::Plan& plan, int64_t stage, std::span<const nlohmann::json> ranks) {
  const auto mine =
      ranks.subspan(static_cast<size_t>(stage * plan.stage_ranks()), static_cast<size_t>(plan.stage_ranks()));
  StageFigures figures{concat("stage ", stage, " (", plan::stage_units_text(plan, stage), ")")};
  // A stage is at the end of a step when the last of its ranks is: what others wait longer, they wait for it.
  double at_ends = std::numeric_limits<double>::infinity();
  for (const nlohmann::json& rank : mine) {
    figures.waited_for_stages = std::max(figures.waited_for_stages, rank.at(0).get<double>());
    at_ends = std::min(at_ends, rank.at(1).get<double>());
    figures.peak_bytes = std::max(figures.peak_bytes, rank.at(3).get<int64_t>());
    figures.computed = std::max(figures.computed, rank.at(4).get<double>());
  }
  figures.waited_for_stages += at_ends;
  for (const nlohmann::json& rank : mine) {
    const double of_stage = rank.at(1).get<double>() - at_ends + rank.at(2).get<double>();
    figures.waited_for_ranks = std::max(figures.waited_for_ranks, of_stage);
  }
  return figures;
}

}  // namespace

std::vector<StageFigures> stage_figures(const plan::Plan& plan, mesh::Mesh& mesh,
                                        const loop::StepSeconds& in_steps) {
  if (plan.stages == 1) return {};
  const loop::StageWaits& waits = in_steps.stages;
  const nlohmann::json mine = {waits.for_messages, waits.at_ends, in_steps.waited - waits.sum(),
                               peak_resident_bytes(), in_steps.computed};
  std::vector<nlohmann::json> ranks;
  for (const std::string& text : mesh.world().all_gather_text(mine.dump(), "figures of the stages"))
    ranks.push_back(nlohmann::json::parse(text));
  std::vector<StageFigures> stages;
  for (int64_t stage = 0; stage < plan.stages; ++stage)
    stages.push_back(figures_of(plan, stage, std::span(ranks)));
  return stages;
}

std::string slowest_stage_text(const std::vector<StageFigures>& stages) {
  const auto [slowest, fastest] = std::ranges::minmax_element(stages, {}, &StageFigures::waited_for_stages);
  return concat("slowest stage: ", slowest->name, ", which computed ", human_seconds(slowest->computed),
                " and waited ", human_seconds(slowest->waited_for_stages),
                " for other stages; the others waited up to ", human_seconds(fastest->waited_for_stages));
}

namespace {

/// ": a stage is idle for ..."; "" of a schedule that was not simulated.
std::string idle_text(const plan::Timing& timing) {
  if (timing.stages.empty()) return "";
  double busy = 0;
  for (const auto& spans : timing.stages) {
    for (const auto& span : spans) busy += span.end - span.begin;
  }
  const double idle = 1 - busy / (timing.makespan * static_cast<double>(timing.stages.size()));
  return concat(": a stage is idle for ", monitor::print("%.0f", 100 * idle),
                " % of a step, by operations (digits: forward passes, letters: backward)");
}

/// "8 micro-batches of 4 images per rank (chosen; parallel.micro_batches sets another number)".
std::string micro_batches_text(const Prepared& p) {
  const auto [batch, per_rank, micro_batches] = p.sizes;
  const bool is_even = batch == p.plan.stage_ranks() * per_rank * micro_batches;
  return concat(micro_batches, micro_batches == 1 ? " micro-batch of " : " micro-batches of ",
                is_even ? "" : "at most ", per_rank, per_rank == 1 ? " image" : " images", " per rank",
                recipe::chooses_micro_batches(p.job.recipe)
                    ? " (chosen; parallel.micro_batches sets another number)"
                    : "");
}

}  // namespace

Rows pipeline_facts(const Prepared& p) {
  const plan::Plan& plan = p.plan;
  if (plan.stages == 1) return {};
  const plan::ScheduleShape shape = plan::shape_of(plan);
  const int64_t passes = shape.stages * shape.parts * shape.micro_batches;
  const plan::Timing timing =
      passes <= kMostPasses ? plan::simulate(shape, plan::schedules_of(shape), costs_of(p)) : plan::Timing();
  const auto inputs = eager::cost_inputs(
      eager::with_kept_activations(p.job.recipe, p.choices.keeps_activations), p.ranks.world, p.device);
  Rows rows;
  rows.emplace_back("pipeline", concat(plan.stages, " stages, ", to_string(plan.schedule), ", ",
                                       micro_batches_text(p), idle_text(timing)));
  const std::vector<std::string> lines = plan::draw(timing, kColumns);
  const std::vector<plan::Memory> memory =
      plan::predict_stage_memory(p.job.recipe.model, plan, inputs, p.sizes.per_rank);
  for (int64_t stage = 0; stage < plan.stages; ++stage) {
    if (plan.stages > kStagesShown && stage >= kStagesShown / 2 && stage < plan.stages - kStagesShown / 2)
      continue;
    const auto index = static_cast<size_t>(stage);
    const double passed = plan::passed_per_image(p.job.recipe.model, plan, stage, inputs) *
                          static_cast<double>(p.sizes.per_rank * plan.micro_batches);
    rows.emplace_back(concat("stage ", stage),
                      concat(plan::stage_text(plan, stage), "; ", human_bytes(memory[index].total()), ", ",
                             lines.empty() ? "" : concat(timing.in_flight[index], " in flight, "), "sends ",
                             human_bytes(passed), " to its neighbours"));
    if (!lines.empty()) rows.emplace_back("  over time", lines[index]);
  }
  return rows;
}

}  // namespace tessera::train
