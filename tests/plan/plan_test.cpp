// SPDX-License-Identifier: Apache-2.0
#include "tessera/plan/plan.h"

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/random.h"
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
                ": expected rules such as blocks.0-19=replicate or blocks.20=zero3+recompute");
}

TEST(Plan, UniformCoversEveryUnit) {
  const Plan plan = uniform_plan(two_blocks(), 4, Level::kZero2, true, 3);
  EXPECT_EQ(plan.world, 4);
  EXPECT_EQ(plan.prefetch, 3);
  const std::vector<UnitPlan> units = {{"stem", Level::kZero2, false},
                                       {"blocks.0", Level::kZero2, true},
                                       {"blocks.1", Level::kZero2, true},
                                       {"head", Level::kZero2, false}};
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
    EXPECT_EQ(unit.recompute, sharded) << unit.name;
  }
  const Plan before = plan;
  assign_levels(&plan, "");
  EXPECT_EQ(plan, before);
}

TEST(AssignLevels, UnitsOfAResNet) {
  Plan plan = uniform_plan(arch::resnet_config("resnet18"), 2, Level::kZero3, true, 1);
  EXPECT_EQ(plan.units.size(), 10U);
  EXPECT_FALSE(plan.units.front().recompute || plan.units.back().recompute);
  EXPECT_TRUE(plan.units[1].recompute);
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
            refusal("", "it does not have the form UNITS=LEVEL[+recompute]"));
  EXPECT_EQ(message("tail=zero1"),
            refusal("tail=zero1", "it does not have the form UNITS=LEVEL[+recompute]"));
  EXPECT_EQ(message("blocks.99999999999=zero1"),
            refusal("blocks.99999999999=zero1", "it does not have the form UNITS=LEVEL[+recompute]"));
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

TEST(PlanJson, RoundTrip) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    Plan plan{static_cast<int64_t>(random_below(seed, 0, 1 << 20)) + 1,
              static_cast<int64_t>(random_below(seed, 1, 9)),
              {}};
    const auto units = random_below(seed, 2, 7) + 1;
    for (uint64_t i = 0; i < units; ++i) {
      plan.units.push_back(
          {concat("unit \"", i, "\" \u00e9"), static_cast<Level>(random_below(seed, 10 + i, 4)),
           random_below(seed, 20 + i, 2) == 1, static_cast<Offload>(random_below(seed, 30 + i, 3))});
    }
    EXPECT_EQ(plan_from_json(to_json(plan), "plan.json"), plan);
  }
}

TEST(PlanJson, TextIsStable) {
  const Plan plan{2, 1, {{"stem", Level::kZero3, false}}};
  EXPECT_EQ(to_json(plan), R"({
  "format": "tessera.plan",
  "version": 1,
  "world": 2,
  "prefetch": 1,
  "units": [
    {
      "name": "stem",
      "level": "zero3",
      "recompute": false
    }
  ]
}
)");
}

TEST(PlanJson, OffloadIsThereWhereItIsNotNone) {
  const Plan plan = uniform_plan(two_blocks(), 2, Level::kZero2, false, 1, Offload::kAll);
  for (const UnitPlan& unit : plan.units) EXPECT_EQ(unit.offload, Offload::kAll);
  std::string text = to_json(plan);
  const size_t at = text.find(R"("offload": "all")");
  ASSERT_NE(at, std::string::npos) << text;
  text.replace(at, 16, R"("offload": "disk")");
  EXPECT_EQ(error_text([&] { plan_from_json(text, "p.json"); }),
            "[plan.plan_from_json] \"offload\" is \"disk\" (p.json): expected one of none, optimizer, all");
}

TEST(PlanJson, ErrorsNameFileAndFault) {
  const std::string good = to_json(Plan{2, 1, {{"stem", Level::kZero3, false}}});
  const auto message = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    const std::string prefix = "[plan.plan_from_json] ";
    std::string error = error_text([&] { plan_from_json(text, "p.json"); });
    EXPECT_TRUE(error.starts_with(prefix)) << error;
    return error.substr(prefix.size());
  };
  EXPECT_EQ(message("{", "["), "not valid JSON at byte 13 (p.json)");
  EXPECT_EQ(message("\"world\": 2", "\"world\": 1e999"), "a number is beyond the range of a double (p.json)");
  EXPECT_EQ(message("\"world\"", "\"wrold\""),
            "a plan has the unknown key \"wrold\" (p.json); did you mean \"world\"?");
  EXPECT_EQ(message("\"world\": 2,", ""), "a plan has no \"world\" (p.json)");
  EXPECT_EQ(message("tessera.plan", "other"), "\"format\" is \"other\" (p.json): expected \"tessera.plan\"");
  EXPECT_EQ(message("\"version\": 1", "\"version\": 2"),
            "\"version\" is 2 (p.json): expected an integer between 1 and 1");
  EXPECT_EQ(message("\"world\": 2", "\"world\": 0"),
            "\"world\" is 0 (p.json): expected an integer between 1 and 16777216");
  EXPECT_EQ(message("\"world\": 2", "\"world\": 18446744073709551615"),
            "\"world\" is 18446744073709551615 (p.json): expected an integer between 1 and 16777216");
  EXPECT_EQ(message("\"prefetch\": 1", "\"prefetch\": 1.5"),
            "\"prefetch\" is 1.5 (p.json): expected an integer between 0 and 65536");
  EXPECT_EQ(message("\"zero3\"", "\"zero5\""),
            "\"level\" is \"zero5\" (p.json): expected one of replicate, zero1, zero2, zero3");
  EXPECT_EQ(message("\"recompute\": false", "\"recompute\": 0"),
            "\"recompute\" is 0 (p.json): expected true or false");
  EXPECT_EQ(message("\"stem\"", "\"\""), "\"name\" of a unit is empty (p.json)");
  EXPECT_EQ(message("\"stem\"", "7"), "\"name\" is 7 (p.json): expected a string");
  EXPECT_EQ(message("  \"units\": [\n    {", "  \"units\": [\n 5, {"),
            "a unit is 5 (p.json): expected an object");
  Plan twice{1, 0, {{"a", Level::kZero1, false}, {"a", Level::kZero1, true}}};
  EXPECT_EQ(error_text([&] { plan_from_json(to_json(twice), "p.json"); }),
            "[plan.plan_from_json] \"units\" has \"a\" twice (p.json)");
  EXPECT_EQ(error_text([&] { plan_from_json(to_json(Plan{}), "p.json"); }),
            "[plan.plan_from_json] \"units\" has no unit (p.json): expected a list of at least one unit");
  EXPECT_EQ(error_text([&] { plan_from_json("[1]", "p.json"); }),
            "[plan.plan_from_json] a plan is [1] (p.json): expected an object");
}

// Any cut or changed byte either fails with one line or gives a plan that can be written again.
TEST(PlanJson, SurvivesDamage) {
  const std::string good = to_json(uniform_plan(two_blocks(), 4, Level::kZero1, true, 2));
  for (size_t i = 0; i <= good.size(); ++i) {
    for (const int change : {-1, 0, int{'"'}, int{'}'}, int{'9'}, 0xff}) {
      std::string text = good;
      if (change < 0) {
        text.resize(i);
      } else if (i < text.size()) {
        text[i] = static_cast<char>(change);
      }
      try {
        const Plan plan = plan_from_json(text, "p.json");
        EXPECT_EQ(plan_from_json(to_json(plan), "p.json"), plan);
      } catch (const UserError& error) {
        EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
      }
    }
  }
}

}  // namespace
}  // namespace tessera::plan
