// SPDX-License-Identifier: Apache-2.0
// Every plan of the search's space, tried one after another: built without the search's bounds.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <set>
#include <vector>

#include "random_machines.h"
#include "tessera/plan/memory.h"
#include "tessera/plan/schedule.h"
#include "tessera/plan/spans.h"

namespace tessera::planner {

/// Layouts of a block for `ranks` ranks of a stage, on hosts of `host`: docs/planner.md, "The search".
inline std::vector<plan::UnitPlan> layouts_of(int64_t ranks, int64_t host) {
  std::vector<plan::UnitPlan> all;
  for (const int64_t tensor : {1, 2}) {
    if (ranks % tensor != 0) continue;
    for (const plan::Level level :
         {plan::Level::kReplicate, plan::Level::kZero1, plan::Level::kZero2, plan::Level::kZero3}) {
      if (ranks == 1 && level != plan::Level::kReplicate) continue;
      std::set<int64_t> groups = {0};
      const int64_t of_host = host / tensor, copies = ranks / tensor;
      if (level != plan::Level::kReplicate && of_host > 1 && of_host < copies && copies % of_host == 0)
        groups.insert(of_host);
      for (const int64_t group : groups) {
        for (const plan::Recompute recompute : {plan::Recompute::kNone, plan::Recompute::kAll}) {
          for (const bool adjacent : {true, false}) {
            if (!adjacent && (tensor == 1 || tensor == ranks || ranks > host || group > 0)) continue;
            for (const bool keeps : {true, false}) {
              if (keeps != (tensor > 1) && (tensor == 1 || recompute == plan::Recompute::kAll)) continue;
              plan::UnitPlan unit;
              unit.level = level;
              unit.recompute = recompute;
              unit.shard = group;
              unit.layout = {tensor, adjacent};
              unit.keep_gathered = keeps;
              all.push_back(unit);
            }
          }
        }
      }
    }
  }
  return all;
}

/// Tries every plan of the space.
class BruteForce {
 public:
  BruteForce(const RandomMachine& machine, bool uniform_only)
      : profile_(machine.profile), question_(machine.question), uniform_only_(uniform_only) {}

  double run() {
    for (int64_t stages = 1; stages <= question_.ranks; ++stages) {
      if (question_.ranks % stages != 0) continue;
      const int64_t ranks = question_.ranks / stages;
      if (stages > units() || (stages > 1 && ranks % host() != 0 && host() % ranks != 0)) continue;
      for (int64_t micro_batches = 1; micro_batches * ranks <= batch(); ++micro_batches) {
        if (batch() % (micro_batches * ranks) != 0) continue;
        with_frame(stages, micro_batches);
      }
    }
    return best_;
  }
  int64_t tried() const { return tried_; }
  /// Of plans that is_simple() takes.
  double best_simple() const { return best_simple_; }
  double least_memory() const { return least_memory_; }
  double most_memory() const { return most_memory_; }

 private:
  int64_t units() const { return arch::unit_names(profile_.model).size(); }
  int64_t batch() const { return question_.batches[0]; }
  int64_t host() const { return std::min(profile_.provenance.ranks_of_host, question_.ranks); }

  void with_frame(int64_t stages, int64_t micro_batches) {
    plan::Plan plan = plan::uniform_plan(profile_.model, question_.ranks, plan::Level::kReplicate, false, 1);
    plan.stages = stages;
    accumulation_ = micro_batches;
    images_ = batch() / (question_.ranks / stages) / micro_batches;
    if (stages == 1) {
      with_cut(plan);
      return;
    }
    plan.micro_batches = micro_batches;
    for (const auto schedule :
         {plan::Schedule::k1F1B, plan::Schedule::kGpipe, plan::Schedule::kInterleaved}) {
      plan.schedule = schedule;
      for (plan.ahead = 0; plan.ahead <= (schedule == plan::Schedule::k1F1B ? 1 : 0); ++plan.ahead) {
        plan.virtual_stages = 1;
        if (schedule != plan::Schedule::kInterleaved) {
          with_cuts(plan, {0});
          continue;
        }
        for (plan.virtual_stages = 2; plan.virtual_stages <= 4; plan.virtual_stages *= 2) {
          const int64_t parts = stages * plan.virtual_stages;
          if (micro_batches % stages != 0 || parts > units()) continue;
          plan.first_unit = plan::cut_by_cost(profile_.model, parts);
          with_layouts(plan, /*uniform=*/true);
        }
      }
    }
  }

  void with_cuts(plan::Plan plan, std::vector<int64_t> cut) {
    if (std::ssize(cut) == plan.stages) {
      plan.first_unit = cut;
      with_cut(plan);
      return;
    }
    for (int64_t next = cut.back() + 1; next < units(); ++next) {
      std::vector<int64_t> longer = cut;
      longer.push_back(next);
      with_cuts(plan, longer);
    }
  }

  void with_cut(const plan::Plan& plan) {
    const bool even = plan.stages == 1 || plan.first_unit == plan::cut_by_cost(profile_.model, plan.stages);
    if (even) with_layouts(plan, true);
    if (!uniform_only_) with_layouts(plan, false);
  }

  void with_layouts(plan::Plan plan, bool uniform) {
    std::vector<plan::UnitPlan> blocks, ends;
    for (const plan::UnitPlan& unit : layouts_of(plan.stage_ranks(), host())) {
      if (!question_.allowed || question_.allowed(plan.stages, unit)) blocks.push_back(unit);
      if (!unit.is_cut() && !unit.recomputes()) ends.push_back(unit);
    }
    if (uniform) {
      for (const plan::UnitPlan& block : blocks) {
        plan::UnitPlan end = block;
        end.shard *= block.layout.tensor;
        end.layout = {};
        end.recompute = plan::Recompute::kNone;
        end.keep_gathered = false;
        for (int64_t i = 0; i < units(); ++i) set(plan, i, i == 0 || i + 1 == units() ? end : block);
        for (plan.prefetch = 0; plan.prefetch <= 2; ++plan.prefetch) try_plan(plan);
      }
      return;
    }
    std::vector<size_t> at(static_cast<size_t>(units()), 0);
    for (;;) {
      for (int64_t i = 0; i < units(); ++i) {
        const auto& of = i == 0 || i + 1 == units() ? ends : blocks;
        if (of.empty()) return;
        set(plan, i, of[at[static_cast<size_t>(i)]]);
      }
      for (plan.prefetch = 0; plan.prefetch <= 1; ++plan.prefetch) try_plan(plan);
      size_t i = 0;
      for (; i < at.size(); ++i) {
        if (++at[i] < (i == 0 || i + 1 == at.size() ? ends : blocks).size()) break;
        at[i] = 0;
      }
      if (i == at.size()) return;
    }
  }

  static void set(plan::Plan& plan, int64_t index, plan::UnitPlan unit) {
    unit.name = plan.units[static_cast<size_t>(index)].name;
    plan.units[static_cast<size_t>(index)] = unit;
  }

  void try_plan(const plan::Plan& plan) {
    ++tried_;
    StepQuestion question;
    question.plan = plan;
    question.inputs = question_.inputs;
    question.inputs.accumulates = accumulation_ > 1;
    question.batch = images_;
    question.accumulation = accumulation_;
    question.pieces = question_.pieces;
    const double memory = plan::predict_memory(profile_.model, plan, question.inputs, question.batch).total();
    least_memory_ = std::min(least_memory_, memory);
    most_memory_ = std::max(most_memory_, memory);
    if (memory > question_.memory) return;
    const double seconds = predict_step(profile_, question).seconds / static_cast<double>(batch());
    best_ = std::min(best_, seconds);
    if (is_simple(plan)) best_simple_ = std::min(best_simple_, seconds);
  }

  /// Is the plan certainly of the space that is searched where there are many plans? Blocks of a stage have
  /// one tensor layout and one group; in a pipeline, where stem and head have what the block beside them has,
  /// they are alike.
  bool is_simple(const plan::Plan& plan) const {
    for (int64_t stage = 0; stage < plan.stages * plan.virtual_stages; ++stage) {
      const auto [begin, end] = plan::units_of_virtual_stage(plan, stage);
      const plan::UnitPlan* first = nullptr;
      for (size_t i = std::max<size_t>(begin, 1); i < std::min(end, plan.units.size() - 1); ++i) {
        plan::UnitPlan unit = plan.units[i];
        if (first == nullptr) first = &plan.units[i];
        unit.name = first->name;
        if (unit.layout != first->layout || unit.shard != first->shard) return false;
        if (plan.stages > 1 && unit != *first) return false;
      }
      if (plan.stages == 1) continue;
      for (const size_t end_unit : {size_t{0}, plan.units.size() - 1}) {
        if (end_unit < begin || end_unit >= end) continue;
        if (first == nullptr || plan.units[end_unit].level != first->level ||
            plan.units[end_unit].shard != first->shard * first->layout.tensor)
          return false;
      }
    }
    return true;
  }

  const Profile& profile_;
  const SearchQuestion& question_;
  bool uniform_only_;
  int64_t accumulation_ = 1, images_ = 1, tried_ = 0;
  double best_ = std::numeric_limits<double>::infinity(), best_simple_ = best_;
  double least_memory_ = std::numeric_limits<double>::infinity(), most_memory_ = 0;
};

}  // namespace tessera::planner
