// SPDX-License-Identifier: Apache-2.0
#include "tessera/plan/plan.h"

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/plan/levels_text.h"
#include "tests/error_text.h"

namespace tessera::plan {
namespace {

arch::VitConfig two_blocks() {
  arch::VitConfig config;
  config.depth = 2;
  return config;
}

std::string refusal(const std::string& rule, const std::string& why) {
  return concat("[plan.assign_levels] shard.units has the rule '", rule, "', but ", why,
                ": expected rules such as blocks.0-19=replicate or blocks.20=zero3+recompute+ranks8");
}

TEST(Plan, UniformCoversEveryUnit) {
  const Plan plan = uniform_plan(two_blocks(), 4, Level::kZero2, true, 3);
  EXPECT_EQ(plan.world, 4);
  EXPECT_EQ(plan.prefetch, 3);
  EXPECT_EQ(plan.stages, 1);
  EXPECT_EQ(plan.first_unit, std::vector<int64_t>{0});
  const std::vector<UnitPlan> units = {{"stem", Level::kZero2, Recompute::kNone},
                                       {"blocks.0", Level::kZero2, Recompute::kAll},
                                       {"blocks.1", Level::kZero2, Recompute::kAll},
                                       {"head", Level::kZero2, Recompute::kNone}};
  EXPECT_EQ(plan.units, units);
  // The units are those that the model's parameters name.
  size_t at = 0;
  for (const auto& spec : arch::parameters(two_blocks())) {
    if (spec.unit != plan.units.at(at).name) ++at;
    EXPECT_EQ(spec.unit, plan.units.at(at).name);
  }
  EXPECT_EQ(at, 3U);
}

TEST(Plan, UniformRefusesWhatCannotBe) {
  EXPECT_EQ(error_text([] { uniform_plan(two_blocks(), 0, Level::kZero3, false, 1); }),
            "[plan.uniform_plan] world is 0: expected 1 to 16777216 ranks");
  EXPECT_EQ(error_text([] { uniform_plan(two_blocks(), 1, Level::kZero3, false, -1); }),
            "[plan.uniform_plan] shard.prefetch is -1: expected 0 to 65536 units");
}

TEST(AssignLevels, GivesUnitsLevelsOfTheirOwn) {
  arch::VitConfig config;
  config.depth = 32;
  Plan plan = uniform_plan(config, 4, Level::kZero2, true, 1);
  assign_levels(&plan, "blocks.0-19=replicate, blocks.20-31 = zero3+recompute,head=zero1,blocks.31=zero2");
  for (const auto& unit : plan.units) {
    const int64_t block = unit.name.starts_with("blocks.") ? std::stoll(unit.name.substr(7)) : -1;
    const bool sharded = block >= 20 && block < 31;
    const Level expected = unit.name == "head"         ? Level::kZero1
                           : block >= 0 && block <= 19 ? Level::kReplicate
                           : sharded                   ? Level::kZero3
                                                       : Level::kZero2;
    EXPECT_EQ(unit.level, expected) << unit.name;
    EXPECT_EQ(unit.recompute, sharded ? Recompute::kAll : Recompute::kNone) << unit.name;
  }
  const Plan before = plan;
  assign_levels(&plan, "");
  EXPECT_EQ(plan, before);
}

TEST(AssignLevels, UnitsOfAResNet) {
  Plan plan = uniform_plan(arch::resnet_config("resnet18"), 2, Level::kZero3, true, 1);
  EXPECT_EQ(plan.units.size(), 10U);
  EXPECT_FALSE(plan.units.front().recomputes() || plan.units.back().recomputes());
  EXPECT_TRUE(plan.units[1].recomputes());
  assign_levels(&plan, "layer4.0-1=replicate, layer1.1=zero1+recompute");
  for (const auto& unit : plan.units) {
    EXPECT_EQ(unit.level, unit.name.starts_with("layer4") ? Level::kReplicate
                          : unit.name == "layer1.1"       ? Level::kZero1
                                                          : Level::kZero3)
        << unit.name;
  }
  EXPECT_EQ(error_text([&] { assign_levels(&plan, "layer4.0-2=zero1"); }),
            refusal("layer4.0-2=zero1", "the model's layer4 are 0 to 1"));
  EXPECT_EQ(error_text([&] { assign_levels(&plan, "blocks.0=zero1"); }),
            refusal("blocks.0=zero1",
                    "the model's units are stem, layer1.0, layer1.1, layer2.0, layer2.1, layer3.0, layer3.1, "
                    "layer4.0, layer4.1, head"));
}

TEST(LevelsText, SaysWhatIsReallyUsed) {
  Plan plan = uniform_plan(two_blocks(), 4, Level::kZero3, false, 1);
  EXPECT_EQ(levels_text(plan), "zero3, 4 units");
  EXPECT_EQ(levels_text(uniform_plan(two_blocks(), 4, Level::kZero1, true, 1)),
            "zero1, 4 units; 2 with recompute");
  assign_levels(&plan, "blocks.0-1=replicate, blocks.1=zero2+recompute");
  EXPECT_EQ(levels_text(plan), "zero3 2 units, replicate 1 unit, zero2 1 unit; 1 with recompute");
}

TEST(SetShardRanks, SetsAllUnitsButReplicatedOnes) {
  Plan plan = uniform_plan(two_blocks(), 8, Level::kZero3, false, 1);
  plan.units[2].level = Level::kReplicate;
  set_shard_ranks(&plan, 4);
  EXPECT_EQ(plan.units[0].shard, 4);
  EXPECT_EQ(plan.units[2].shard, 0);
  EXPECT_EQ(plan.units[3].shard, 4);
  EXPECT_EQ(levels_text(plan), "zero3 over 4 of 8 ranks 3 units, replicate 1 unit");
  for (const int64_t ranks : {3, 16, -1}) {
    EXPECT_EQ(error_text([&] { set_shard_ranks(&plan, ranks); }),
              concat("[plan.set_shard_ranks] shard.ranks is ", ranks,
                     ": expected 0 or a divisor of the 8 ranks that train"));
  }
}

TEST(AssignLevels, GivesUnitsShardRanks) {
  Plan plan = uniform_plan(two_blocks(), 8, Level::kReplicate, false, 1);
  set_shard_ranks(&plan, 4);
  assign_levels(&plan, "stem=zero3, blocks.0=zero3+ranks2+recompute, blocks.1=zero2+recompute+ranks0", 4);
  EXPECT_EQ(plan.units[0].shard, 4) << "shard.ranks";
  EXPECT_EQ(plan.units[1].shard, 2);
  EXPECT_EQ(plan.units[1].recompute, Recompute::kAll);
  EXPECT_EQ(plan.units[2].shard, 0) << "all ranks";
  EXPECT_EQ(plan.units[2].recompute, Recompute::kAll);
  EXPECT_EQ(plan.units[3].shard, 0) << "replicated";
  assign_levels(&plan, "blocks.0=zero1", 4);
  EXPECT_EQ(plan.units[1].shard, 4) << "the later rule says nothing of ranks";
  const auto message = [&](const std::string& rule) {
    return error_text([&] { assign_levels(&plan, rule); });
  };
  EXPECT_EQ(message("stem=zero3+ranks3"),
            refusal("stem=zero3+ranks3", "3 does not divide the 8 ranks that train"));
  EXPECT_EQ(message("stem=replicate+ranks2"),
            refusal("stem=replicate+ranks2", "a replicated unit is not split over ranks"));
  EXPECT_EQ(message("stem=zero3+ranks"), refusal("stem=zero3+ranks", "+ranks has no number of ranks"));
  EXPECT_EQ(
      message("stem=zero3+ranks99999999999999999999"),
      refusal("stem=zero3+ranks99999999999999999999", "+ranks99999999999999999999 has no number of ranks"));
  for (const std::string rule : {"stem=zero3+ranks2+ranks2", "blocks.0=zero3+recompute+recompute",
                                 "stem=zero3+hosts2", "stem=zero3+"}) {
    EXPECT_EQ(message(rule), refusal(rule, "it does not have the form UNITS=LEVEL[+recompute][+ranksN]"));
  }
}

TEST(AssignLevels, RefusesWhatCannotBe) {
  const auto message = [](const std::string& rules) {
    return error_text([&] {
      Plan plan = uniform_plan(two_blocks(), 1, Level::kZero3, false, 1);
      assign_levels(&plan, rules);
    });
  };
  EXPECT_EQ(message("blocks.0-2=zero1"), refusal("blocks.0-2=zero1", "the model's blocks are 0 to 1"));
  EXPECT_EQ(message("blocks.1-0=zero1"), refusal("blocks.1-0=zero1", "its range is empty"));
  EXPECT_EQ(message("head=zero1+recompute"),
            refusal("head=zero1+recompute", "only blocks can be recomputed"));
  EXPECT_EQ(message("head=zero1,"), "no error");
  EXPECT_EQ(message("head=zero1,,stem=zero1"),
            refusal("", "it does not have the form UNITS=LEVEL[+recompute][+ranksN]"));
  EXPECT_EQ(message("tail=zero1"),
            refusal("tail=zero1", "it does not have the form UNITS=LEVEL[+recompute][+ranksN]"));
  EXPECT_EQ(
      message("blocks.99999999999=zero1"),
      refusal("blocks.99999999999=zero1", "it does not have the form UNITS=LEVEL[+recompute][+ranksN]"));
  EXPECT_EQ(message("stem=zero4"),
            "[plan.level_from_string] the level is \"zero4\": expected one of replicate, zero1, zero2, "
            "zero3; did you mean \"zero1\"?");
}

TEST(Plan, LevelsByName) {
  for (const Level level : {Level::kReplicate, Level::kZero1, Level::kZero2, Level::kZero3}) {
    EXPECT_EQ(level_from_string(to_string(level)), level);
  }
  EXPECT_EQ(error_text([] { level_from_string("zero4"); }),
            "[plan.level_from_string] the level is \"zero4\": expected one of replicate, zero1, zero2, "
            "zero3; did you mean \"zero1\"?");
  EXPECT_EQ(error_text([] { level_from_string(""); }),
            "[plan.level_from_string] the level is \"\": expected one of replicate, zero1, zero2, zero3");
}

}  // namespace
}  // namespace tessera::plan
