// SPDX-License-Identifier: Apache-2.0
#include "tessera/plan/plan.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/plan/names.h"
#include "tessera/plan/sized_units.h"
#include "tessera/plan/spans.h"

namespace tessera::plan {

// (More than 5 parameters: the fields that all units of the plan have.)
Plan uniform_plan(const arch::ModelConfig& config, int64_t world, Level level, bool recompute,
                  int64_t prefetch, Offload offload) {
  if (world < 1 || world > kLargestWorld) {
    user_error({.where = "plan.uniform_plan",
                .problem = concat("world is ", world),
                .expected = concat("1 to ", kLargestWorld, " ranks")});
  }
  if (prefetch < 0 || prefetch > kLargestPrefetch) {
    user_error({.where = "plan.uniform_plan",
                .problem = concat("shard.prefetch is ", prefetch),
                .expected = concat("0 to ", kLargestPrefetch, " units")});
  }
  Plan plan;
  plan.world = world;
  plan.prefetch = prefetch;
  const auto names = arch::unit_names(config);
  for (const auto& name : names) {
    const bool end = name == names.front() || name == names.back();
    plan.units.push_back({name, level, recompute && !end ? Recompute::kAll : Recompute::kNone, offload});
  }
  return plan;
}

void set_tensor(Plan* plan, const arch::ModelConfig& config, const Layout& layout, bool keep_gathered) {
  if (layout.tensor == 1) return;
  const auto refuse = [&](const std::string& why, const std::string& expected) {
    user_error({.where = "plan.set_tensor",
                .problem = concat("parallel.tensor is ", layout.tensor, why),
                .expected = expected});
  };
  const std::set<std::string> cuttable = cuttable_units(config);
  if (cuttable.empty()) {
    refuse(concat(", but tensor parallelism cuts nothing of a model of the family \"", config.family(), "\""),
           "1");
  }
  const int64_t ranks = plan->stage_ranks();
  if (layout.tensor < 1 || ranks % layout.tensor != 0) {
    refuse("", concat("a divisor of the ", ranks, ranks == 1 ? " rank" : " ranks",
                      plan->stages > 1 ? " of a stage"
                      : ranks == 1     ? " that trains"
                                       : " that train"));
  }
  for (UnitPlan& unit : plan->units) {
    if (!cuttable.contains(unit.name)) continue;
    unit.layout = layout;
    unit.keep_gathered = keep_gathered;
  }
}

Plan plan_of_blocks(const arch::ModelConfig& config, int64_t world, int64_t tensor, Recompute recompute,
                    bool keep_gathered) {
  Plan plan = uniform_plan(config, world, Level::kReplicate, recompute != Recompute::kNone, /*prefetch=*/1);
  for (UnitPlan& unit : plan.units) {
    if (unit.recomputes()) unit.recompute = recompute;
  }
  set_tensor(&plan, config, {tensor, /*adjacent=*/true}, keep_gathered);
  return plan;
}

bool can_cut(const arch::ModelConfig& config) { return !cuttable_units(config).empty(); }

void set_shard_ranks(Plan* plan, int64_t ranks) {
  for (UnitPlan& unit : plan->units) {
    const int64_t all = data_parallel_span(*plan, unit).size;
    if (ranks < 0 || (ranks > 0 && all % ranks != 0)) {
      const std::string word = all == 1 ? " rank" : " ranks";
      user_error({.where = "plan.set_shard_ranks",
                  .problem = concat("shard.ranks is ", ranks),
                  .expected = concat("0 or a divisor of the ", all,
                                     unit.is_cut() ? concat(" data-parallel", word, " of ", unit.name)
                                                   : concat(word, plan->stages > 1 ? " of a stage"
                                                                  : all == 1       ? " that trains"
                                                                                   : " that train"))});
    }
    if (unit.level != Level::kReplicate) unit.shard = ranks;
  }
}

const UnitPlan& unit_of(const Plan& plan, const std::string& name) {
  const auto found = std::ranges::find(plan.units, name, &UnitPlan::name);
  TESSERA_CHECK(found != plan.units.end(), "no unit ", name, " in the plan");
  return *found;
}

UnitPlan rows_plan(const UnitPlan& unit) {
  TESSERA_CHECK(unit.is_cut(), unit.name);
  UnitPlan rows{.name = unit.name + "/rows", .offload = unit.offload};
  rows.level = unit.level == Level::kReplicate ? Level::kReplicate : Level::kZero1;
  return rows;
}

std::string to_string(Level level) {
  switch (level) {
    case Level::kReplicate:
      return "replicate";
    case Level::kZero1:
      return "zero1";
    case Level::kZero2:
      return "zero2";
    case Level::kZero3:
      return "zero3";
  }
  TESSERA_CHECK(false, "level ", static_cast<int>(level));
  return {};
}

std::string to_string(Offload offload) {
  switch (offload) {
    case Offload::kNone:
      return "none";
    case Offload::kOptimizer:
      return "optimizer";
    case Offload::kAll:
      return "all";
  }
  TESSERA_CHECK(false, "offload ", static_cast<int>(offload));
  return {};
}

std::string to_string(Recompute recompute) {
  switch (recompute) {
    case Recompute::kNone:
      return "none";
    case Recompute::kAll:
      return "all";
    case Recompute::kKeepSums:
      return "keep_sums";
  }
  TESSERA_CHECK(false, "recompute ", static_cast<int>(recompute));
  return {};
}

std::string to_string(Schedule schedule) {
  switch (schedule) {
    case Schedule::kGpipe:
      return "gpipe";
    case Schedule::k1F1B:
      return "1f1b";
    case Schedule::kInterleaved:
      return "interleaved";
  }
  TESSERA_CHECK(false, "schedule ", static_cast<int>(schedule));
  return {};
}

Level level_from_string(const std::string& name) {
  const auto names = names_of(kLevels);
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i] == name) return kLevels.at(i);
  }
  const std::string near = nearest(name, names);
  user_error({.where = "plan.level_from_string",
              .problem = concat("the level is \"", escape(name), "\""),
              .expected = concat("one of ", join(names, ", ")),
              .hint = near.empty() ? "" : concat("did you mean \"", near, "\"?")});
}

}  // namespace tessera::plan
