// SPDX-License-Identifier: Apache-2.0
#include "tessera/plan/plan.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/text.h"
#include "tessera/plan/levels_text.h"
#include "tests/error_text.h"

namespace tessera::plan {
namespace {

arch::VitConfig two_blocks() {
  arch::VitConfig config;
  config.depth = 2;
  return config;
}

constexpr const char* kForm =
    "it does not have the form UNITS=WORD+WORD... with a level, recompute or keep_sums, ranksN, tensorN, "
    "adjacent or strided, keep_gathered or regather";

std::string refusal(const std::string& rule, const std::string& why) {
  return concat("[plan.unit_rules] shard.units has the rule '", rule, "', but ", why,
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

TEST(UnitRules, GivesUnitsLevelsOfTheirOwn) {
  arch::VitConfig config;
  config.depth = 32;
  Plan plan = uniform_plan(config, 4, Level::kZero2, true, 1);
  apply_unit_rules(&plan, config,
                   "blocks.0-19=replicate, blocks.20-31 = zero3+recompute,head=zero1,blocks.31=zero2");
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
  apply_unit_rules(&plan, config, "");
  EXPECT_EQ(plan, before);
}

TEST(UnitRules, UnitsOfAResNet) {
  Plan plan = uniform_plan(arch::resnet_config("resnet18"), 2, Level::kZero3, true, 1);
  EXPECT_EQ(plan.units.size(), 10U);
  EXPECT_FALSE(plan.units.front().recomputes() || plan.units.back().recomputes());
  EXPECT_TRUE(plan.units[1].recomputes());
  apply_unit_rules(&plan, arch::resnet_config("resnet18"), "layer4.0-1=replicate, layer1.1=zero1+recompute");
  for (const auto& unit : plan.units) {
    EXPECT_EQ(unit.level, unit.name.starts_with("layer4") ? Level::kReplicate
                          : unit.name == "layer1.1"       ? Level::kZero1
                                                          : Level::kZero3)
        << unit.name;
  }
  EXPECT_EQ(error_text([&] { apply_unit_rules(&plan, arch::resnet_config("resnet18"), "layer4.0-2=zero1"); }),
            refusal("layer4.0-2=zero1", "the model's layer4 are 0 to 1"));
  EXPECT_EQ(error_text([&] { apply_unit_rules(&plan, arch::resnet_config("resnet18"), "blocks.0=zero1"); }),
            refusal("blocks.0=zero1",
                    "the model's units are stem, layer1.0, layer1.1, layer2.0, layer2.1, layer3.0, layer3.1, "
                    "layer4.0, layer4.1, head"));
}

TEST(LevelsText, SaysWhatIsReallyUsed) {
  Plan plan = uniform_plan(two_blocks(), 4, Level::kZero3, false, 1);
  EXPECT_EQ(levels_text(plan), "zero3, 4 units");
  EXPECT_EQ(levels_text(uniform_plan(two_blocks(), 4, Level::kZero1, true, 1)),
            "zero1, 4 units; 2 with recompute");
  apply_unit_rules(&plan, two_blocks(), "blocks.0-1=replicate, blocks.1=zero2+recompute");
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

TEST(UnitRules, GivesUnitsShardRanks) {
  Plan plan = uniform_plan(two_blocks(), 8, Level::kReplicate, false, 1);
  set_shard_ranks(&plan, 4);
  apply_unit_rules(&plan, two_blocks(),
                   "stem=zero3, blocks.0=zero3+ranks2+recompute, blocks.1=zero2+recompute+ranks0",
                   {.shard_ranks = 4});
  EXPECT_EQ(plan.units[0].shard, 4) << "shard.ranks";
  EXPECT_EQ(plan.units[1].shard, 2);
  EXPECT_EQ(plan.units[1].recompute, Recompute::kAll);
  EXPECT_EQ(plan.units[2].shard, 0) << "all ranks";
  EXPECT_EQ(plan.units[2].recompute, Recompute::kAll);
  EXPECT_EQ(plan.units[3].shard, 0) << "replicated";
  apply_unit_rules(&plan, two_blocks(), "blocks.0=zero1", {.shard_ranks = 4});
  EXPECT_EQ(plan.units[1].shard, 4) << "the later rule says nothing of ranks";
  const auto message = [&](const std::string& rule) {
    return error_text([&] { apply_unit_rules(&plan, two_blocks(), rule); });
  };
  EXPECT_EQ(message("stem=zero3+ranks3"),
            refusal("stem=zero3+ranks3", "3 does not divide the 8 ranks that train"));
  EXPECT_EQ(message("stem=replicate+ranks2"),
            refusal("stem=replicate+ranks2", "a replicated unit is not split over ranks"));
  EXPECT_EQ(message("stem=zero3+ranks"), refusal("stem=zero3+ranks", "'ranks' has no number of ranks"));
  EXPECT_EQ(
      message("stem=zero3+ranks99999999999999999999"),
      refusal("stem=zero3+ranks99999999999999999999", "'ranks99999999999999999999' has no number of ranks"));
  EXPECT_EQ(message("stem=zero3+"), refusal("stem=zero3+", kForm));
}

TEST(UnitRules, RefusesWhatCannotBe) {
  const auto message = [](const std::string& rules) {
    return error_text([&] {
      Plan plan = uniform_plan(two_blocks(), 1, Level::kZero3, false, 1);
      apply_unit_rules(&plan, two_blocks(), rules);
    });
  };
  EXPECT_EQ(message("blocks.0-2=zero1"), refusal("blocks.0-2=zero1", "the model's blocks are 0 to 1"));
  EXPECT_EQ(message("blocks.1-0=zero1"), refusal("blocks.1-0=zero1", "its range is empty"));
  EXPECT_EQ(message("head=zero1+recompute"),
            refusal("head=zero1+recompute", "only blocks can be recomputed"));
  EXPECT_EQ(message("head=zero1,"), "no error");
  EXPECT_EQ(message("head=zero1,,stem=zero1"), refusal("", kForm));
  for (const char* name : {"tail", "blocks"}) {
    const std::string rule = concat(name, "=zero1");
    EXPECT_EQ(message(rule),
              refusal(rule, concat("'", name,
                                   "' is neither a unit nor a range of units such as blocks.0-3; the "
                                   "model's units are stem, blocks.0, blocks.1, head")));
  }
  EXPECT_EQ(message("stem=" + std::string(1'000'000, 'a')),
            refusal("stem=" + std::string(35, 'a') + "...", "it has 1000005 characters, more than 512"));
  EXPECT_EQ(message(std::string(500, ' ') + "head=zero1"), "no error");
  EXPECT_EQ(message("blocks.99999999999=zero1"), refusal("blocks.99999999999=zero1", kForm));
  const auto word = [](const std::string& rule, const std::string& text) {
    return refusal(rule,
                   concat("'", text,
                          "' is not a word of rules (replicate, zero1, zero2, zero3, recompute, keep_sums, "
                          "ranksN, tensorN, adjacent, strided, keep_gathered, regather)"));
  };
  EXPECT_EQ(message("stem=zero4"), word("stem=zero4", "zero4") + "; did you mean zero1?");
  EXPECT_EQ(message("stem=zero3+hosts2"), word("stem=zero3+hosts2", "hosts2"));
  EXPECT_EQ(message("blocks.0=keep_gatherd"),
            word("blocks.0=keep_gatherd", "keep_gatherd") + "; did you mean keep_gathered?");
}

TEST(SetTensor, CutsBlocksAndNoEnds) {
  Plan plan = uniform_plan(two_blocks(), 8, Level::kZero3, false, 1);
  const Plan before = plan;
  set_tensor(&plan, two_blocks(), {.tensor = 1}, true);
  EXPECT_EQ(plan, before);
  set_tensor(&plan, two_blocks(), {.tensor = 4, .adjacent = false}, true);
  for (const size_t end : {0, 3}) EXPECT_EQ(plan.units[end], before.units[end]);
  for (const size_t block : {1, 2}) {
    EXPECT_EQ(plan.units[block].layout, (Layout{4, false}));
    EXPECT_TRUE(plan.units[block].keep_gathered);
  }
  EXPECT_EQ(levels_text(plan), "zero3 2 units, zero3 with tensor 4 (strided) 2 units");
  EXPECT_EQ(
      error_text([&] { set_shard_ranks(&plan, 4); }),
      "[plan.set_shard_ranks] shard.ranks is 4: expected 0 or a divisor of the 2 data-parallel ranks of "
      "blocks.0");
  set_shard_ranks(&plan, 2);
  EXPECT_EQ(levels_text(plan),
            "zero3 over 2 of 8 ranks 2 units, zero3 over 2 of 2 ranks with tensor 4 (strided) 2 units");
}

TEST(SetTensor, RefusesWhatCannotBe) {
  const auto message = [](const arch::ModelConfig& config, int64_t tensor) {
    return error_text([&] {
      Plan plan = uniform_plan(config, 4, Level::kZero3, false, 1);
      set_tensor(&plan, config, {.tensor = tensor}, true);
    });
  };
  EXPECT_EQ(message(two_blocks(), 3),
            "[plan.set_tensor] parallel.tensor is 3: expected a divisor of the 4 ranks that train");
  EXPECT_EQ(message(two_blocks(), 8),
            "[plan.set_tensor] parallel.tensor is 8: expected a divisor of the 4 ranks that train");
  EXPECT_EQ(message(arch::resnet_config("resnet18"), 2),
            "[plan.set_tensor] parallel.tensor is 2, but tensor parallelism cuts nothing of a model of the "
            "family \"resnet\": expected 1");
}

TEST(UnitRules, GiveUnitsTensorDegrees) {
  arch::VitConfig config;
  config.depth = 6;
  Plan plan = uniform_plan(config, 8, Level::kZero2, false, 1);
  set_tensor(&plan, config, {.tensor = 2}, false);
  set_shard_ranks(&plan, 2);
  apply_unit_rules(&plan, config,
                   "blocks.0=tensor4+replicate, blocks.1=recompute+strided, blocks.2=regather+zero3+tensor4+"
                   "ranks0+strided, blocks.3=tensor1, blocks.4=keep_sums+keep_gathered, stem=zero1+tensor1",
                   {.shard_ranks = 2, .adjacent = true, .keep_gathered = true});
  const std::vector<UnitPlan> expected = {
      {.name = "stem", .level = Level::kZero1, .shard = 2},
      {.name = "blocks.0", .level = Level::kReplicate, .layout = {4, true}, .keep_gathered = true},
      {.name = "blocks.1",
       .level = Level::kZero2,
       .recompute = Recompute::kAll,
       .shard = 2,
       .layout = {2, false},
       .keep_gathered = true},
      {.name = "blocks.2", .level = Level::kZero3, .layout = {4, false}},
      {.name = "blocks.3", .level = Level::kZero2, .shard = 2},
      {.name = "blocks.4",
       .level = Level::kZero2,
       .recompute = Recompute::kKeepSums,
       .shard = 2,
       .layout = {2, true},
       .keep_gathered = true},
      {.name = "blocks.5", .level = Level::kZero2, .shard = 2, .layout = {2, true}},
      {.name = "head", .level = Level::kZero2, .shard = 2}};
  EXPECT_EQ(plan.units, expected);
  EXPECT_EQ(error_text([&] { check(plan, "p"); }), "no error");
}

// A later rule replaces an earlier one, but not a tensor degree.
TEST(UnitRules, RefuseASecondRuleForAUnitWithATensorDegree) {
  const auto message = [](const std::string& rules) {
    return error_text([&] {
      Plan plan = uniform_plan(two_blocks(), 8, Level::kZero3, false, 1);
      apply_unit_rules(&plan, two_blocks(), rules);
    });
  };
  EXPECT_EQ(message("blocks.0-1=tensor4+strided, blocks.1=zero2"),
            refusal(" blocks.1=zero2", "blocks.1 has two rules, of which one gives tensorN"));
  EXPECT_EQ(message("blocks.1=zero2,blocks.0-1=tensor4"),
            refusal("blocks.0-1=tensor4", "blocks.1 has two rules, of which one gives tensorN"));
  EXPECT_EQ(message("blocks.0-1=zero1,blocks.1=zero2"), "no error");
}

TEST(UnitRules, RefuseTensorDegreesThatCannotBe) {
  const auto message = [](const arch::ModelConfig& config, const std::string& rules) {
    return error_text([&] {
      Plan plan = uniform_plan(config, 8, Level::kZero3, false, 1);
      apply_unit_rules(&plan, config, rules, {.shard_ranks = 4});
    });
  };
  const std::pair<std::string, std::string> cases[] = {
      {"blocks.0=tensor3", "tensor3 does not divide the 8 ranks that train"},
      {"stem=tensor2", "tensor parallelism cuts nothing of stem"},
      {"head=zero3+tensor2", "tensor parallelism cuts nothing of head"},
      {"blocks.0=tensor0", "'tensor0' has no number of ranks"},
      {"blocks.0=tensor", "'tensor' has no number of ranks"},
      {"blocks.0=tensor2+ranks8", "8 does not divide the 4 data-parallel ranks of blocks.0"},
      {"blocks.0=tensor8+ranks2", "2 does not divide the 1 data-parallel rank of blocks.0"},
      {"blocks.0=tensor4", "shard.ranks = 4 does not divide the 2 data-parallel ranks of blocks.0"},
      {"blocks.0=tensor2+tensor2", "it gives tensor twice"},
      {"blocks.0=zero3+zero2", "it gives the level twice"},
      {"blocks.0=ranks2+ranks2", "it gives ranks twice"},
      {"blocks.0=recompute+keep_sums+tensor2", "it gives recompute twice"},
      {"blocks.0=tensor2+strided+adjacent", "it gives adjacent or strided twice"},
      {"blocks.0=tensor2+regather+regather", "it gives keep_gathered or regather twice"},
      {"blocks.0=keep_sums", "keep_sums has no effect without tensor parallelism, and blocks.0 has tensor 1"},
      {"blocks.0=strided", "strided has no effect without tensor parallelism, and blocks.0 has tensor 1"},
      {"blocks.0=regather", "regather has no effect without tensor parallelism, and blocks.0 has tensor 1"}};
  for (const auto& [rule, why] : cases) EXPECT_EQ(message(two_blocks(), rule), refusal(rule, why));
  EXPECT_EQ(message(arch::resnet_config("resnet18"), "layer1.0=tensor2"),
            refusal("layer1.0=tensor2", "tensor parallelism cuts nothing of layer1.0"));
}

TEST(UnitRules, ForAnyRanks) {
  const std::string rules = "blocks.0-3=tensor2+zero3+ranks4, blocks.4 = keep_sums+strided ,blocks.5=tensor2";
  EXPECT_EQ(rules_for_any_ranks(rules, false),
            "blocks.0-3=tensor2+zero3, blocks.4 =keep_sums+strided,blocks.5=tensor2");
  EXPECT_EQ(rules_for_any_ranks(rules, true), "blocks.0-3=zero3, blocks.4 =recompute");
  EXPECT_EQ(rules_for_any_ranks("", true), "");
}

TEST(ReadPlan, RefusesPlansOfOtherRunsByName) {
  const TemporaryFolder folder("tessera-plan");
  const std::filesystem::path path = folder.path() / "plan.json";
  const auto message = [&](const Plan& plan, int64_t world) {
    write_file_atomic(path, to_json(plan));
    return error_text([&] { read_plan(path, two_blocks(), world); });
  };
  Plan plan = uniform_plan(two_blocks(), 4, Level::kZero3, false, 1);
  set_tensor(&plan, two_blocks(), {.tensor = 2}, true);
  write_file_atomic(path, to_json(plan));
  EXPECT_EQ(read_plan(path, two_blocks(), 4), plan);
  EXPECT_EQ(message(plan, 8), concat("[plan.read_plan] \"world\" is 4 (", path.string(),
                                     "): expected 8, the number of ranks of this run; start 4 ranks with "
                                     "--procs, srun or torchrun; or search a plan for 8"));
  plan.units.front().layout.tensor = 2;
  EXPECT_EQ(message(plan, 4), concat("[plan.read_plan] \"tensor\" of \"stem\" is 2 (", path.string(),
                                     "): expected 1: the unit has no layers that tensor parallelism cuts"));
  plan.units.front().layout.tensor = 1;
  plan.units[2].name = "blocks.7";
  EXPECT_EQ(message(plan, 4), concat("[plan.read_plan] unit 2 of the plan is \"blocks.7\" (", path.string(),
                                     "): expected \"blocks.1\""));
  plan.units.pop_back();
  EXPECT_EQ(message(plan, 4), concat("[plan.read_plan] the plan has 3 units (", path.string(),
                                     "): expected the 4 units of the model"));
  std::filesystem::remove(path);
  EXPECT_EQ(
      error_text([&] { read_plan(path, two_blocks(), 4); }),
      concat("[file.open] cannot open ", path.string(),
             ": No such file or directory (parallel.plan); set it to a plan file: a run that used one has "
             "the same plan in its plan.json"));
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
