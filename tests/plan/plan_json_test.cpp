// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/random.h"
#include "tessera/plan/plan.h"
#include "tests/error_text.h"

namespace tessera::plan {
namespace {

arch::VitConfig small_model() {
  arch::VitConfig config;
  config.depth = 2;
  return config;
}

/// A consistent plan of every kind of value, by seed.
Plan random_plan(uint64_t seed) {
  auto draw = [seed, at = uint64_t{0}](int64_t below) mutable {
    return static_cast<int64_t>(random_below(seed, at++, static_cast<uint64_t>(below)));
  };
  Plan plan;
  plan.stages = 1 + draw(3);
  const bool interleaved = plan.stages > 1 && draw(2) == 1;
  plan.schedule = interleaved ? Schedule::kInterleaved : static_cast<Schedule>(draw(2));
  plan.virtual_stages = interleaved ? 2 + draw(2) : 1;
  plan.ahead = plan.stages > 1 && plan.schedule == Schedule::k1F1B ? draw(2) : 0;
  plan.micro_batches = plan.stages * (plan.stages > 1 ? 1 + draw(9) : draw(9));
  const int64_t dp = 1 << draw(4), tensor = 1 + draw(3), other = 1 + draw(3);
  plan.world = plan.stages * tensor * other * dp;
  plan.prefetch = draw(9);
  const int64_t parts = plan.stages * plan.virtual_stages, units = parts + draw(7);
  plan.first_unit = {0};
  for (int64_t i = 1; i < parts; ++i) {
    const int64_t low = plan.first_unit.back() + 1, high = units - parts + i;
    plan.first_unit.push_back(low + draw(high - low + 1));
  }
  for (int64_t i = 0; i < units; ++i) {
    UnitPlan unit{concat("unit \"", i, "\" \u00e9")};
    unit.level = static_cast<Level>(draw(4));
    unit.recompute = static_cast<Recompute>(draw(3));
    unit.offload = static_cast<Offload>(draw(3));
    unit.layout = {draw(2) == 1 ? tensor : 1, draw(2) == 1};
    unit.keep_gathered = draw(2) == 1;
    unit.shard = unit.level != Level::kReplicate && draw(2) == 1 ? dp : 0;
    plan.units.push_back(unit);
  }
  return plan;
}

TEST(PlanJson, RoundTrip) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const Plan plan = random_plan(seed);
    EXPECT_EQ(plan_from_json(to_json(plan), "plan.json"), plan) << to_json(plan);
  }
}

TEST(PlanJson, TextIsStable) {
  Plan plan;
  plan.world = 8;
  plan.stages = 2;
  plan.micro_batches = 4;
  plan.first_unit = {0, 1};
  plan.units = {{"stem"},
                {.name = "head",
                 .level = Level::kZero1,
                 .recompute = Recompute::kKeepSums,
                 .offload = Offload::kAll,
                 .shard = 2,
                 .layout = {2, false},
                 .keep_gathered = true}};
  EXPECT_EQ(to_json(plan), R"({
  "format": "tessera.plan",
  "version": 2,
  "world": 8,
  "stages": 2,
  "virtual_stages": 1,
  "micro_batches": 4,
  "schedule": "1f1b",
  "first_unit": [
    0,
    1
  ],
  "prefetch": 1,
  "units": [
    {
      "name": "stem",
      "level": "zero3",
      "recompute": "none"
    },
    {
      "name": "head",
      "level": "zero1",
      "recompute": "keep_sums",
      "offload": "all",
      "shard": 2,
      "tensor": 2,
      "adjacent": false,
      "keep_gathered": true
    }
  ]
}
)");
}

TEST(PlanJson, VersionOneLoads) {
  Plan expected;  // 1 stage, tensor 1, shard 0
  expected.world = 4;
  expected.prefetch = 2;
  expected.units = {{"stem", Level::kZero2},
                    {"blocks.0", Level::kZero3, Recompute::kAll},
                    {"blocks.1", Level::kReplicate},
                    {"head", Level::kZero1, Recompute::kNone, Offload::kOptimizer}};
  const std::string file = TESSERA_SOURCE_DIR "/tests/plan/fixtures/plan_v1.json";
  const std::string text = read_file(file);
  EXPECT_EQ(plan_from_json(text, file), expected);
  const auto message = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    changed.replace(changed.find(from), from.size(), to);
    return error_text([&] { plan_from_json(changed, "p.json"); });
  };
  EXPECT_EQ(message("\"prefetch\": 2,", "\"prefetch\": 2, \"stages\": 1,"),
            "[plan.plan_from_json] a plan has the unknown key \"stages\" (p.json): expected one of format, "
            "version, world, prefetch, units");
  EXPECT_EQ(message("\"recompute\": true", "\"recompute\": \"all\""),
            "[plan.plan_from_json] \"recompute\" is \"all\" (p.json): expected true or false");
}

TEST(PlanJson, OffloadIsThereWhereItIsNotNone) {
  const Plan plan = uniform_plan(small_model(), 2, Level::kZero2, false, 1, Offload::kAll);
  for (const UnitPlan& unit : plan.units) EXPECT_EQ(unit.offload, Offload::kAll);
  std::string text = to_json(plan);
  const size_t at = text.find(R"("offload": "all")");
  ASSERT_NE(at, std::string::npos) << text;
  text.replace(at, 16, R"("offload": "disk")");
  EXPECT_EQ(error_text([&] { plan_from_json(text, "p.json"); }),
            "[plan.plan_from_json] \"offload\" is \"disk\" (p.json): expected one of none, optimizer, all");
}

// A parser with a callback takes time in proportion to the square of a list's length: 40 s for twice as many.
TEST(PlanJson, TimeIsLinearInTheUnits) {
  Plan plan;
  for (int i = 0; i < 150'000; ++i) plan.units.push_back({concat("blocks.", i)});
  plan.units.push_back(plan.units.front());
  const std::string text = to_json(plan);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(error_text([&] { plan_from_json(text, "p.json"); }),
            "[plan.check] \"units\" has \"blocks.0\" twice (p.json)");
  EXPECT_LT(seconds_since(start), 6);
}

TEST(PlanJson, ErrorsNameFileAndFault) {
  Plan two_ranks;
  two_ranks.world = 2;
  two_ranks.units = {{"stem"}};
  const std::string good = to_json(two_ranks);
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
  EXPECT_EQ(message("\"world\": 2", "\"world\": 2, \"world\": 3"),
            "the key \"world\" is given twice (p.json): expected each key of an object once");
  EXPECT_EQ(message("\"name\": \"stem\"", "\"name\": \"stem\", \"name\": \"x\""),
            "the key \"name\" is given twice (p.json): expected each key of an object once");
  EXPECT_EQ(message("{", std::string("\0{", 2)), "not valid JSON at byte 1 (p.json)");
  EXPECT_EQ(message("\"world\": 2", "\"world\": 1e999"), "a number is beyond the range of a double (p.json)");
  EXPECT_EQ(message("\"world\"", "\"wrold\""),
            "a plan has the unknown key \"wrold\" (p.json); did you mean \"world\"?");
  EXPECT_EQ(message("\"world\": 2,", ""), "a plan has no \"world\" (p.json)");
  EXPECT_EQ(message("tessera.plan", "other"), "\"format\" is \"other\" (p.json): expected \"tessera.plan\"");
  EXPECT_EQ(message("\"version\": 2", "\"version\": 3"),
            "\"version\" is 3 (p.json): expected an integer between 1 and 2");
  EXPECT_EQ(message("\"version\": 2,", ""), "a plan has no \"version\" (p.json)");
  EXPECT_EQ(message("\"schedule\": \"1f1b\"", "\"schedule\": \"2f2b\""),
            "\"schedule\" is \"2f2b\" (p.json): expected one of gpipe, 1f1b, interleaved");
  EXPECT_EQ(message("\"first_unit\": [\n    0\n  ]", "\"first_unit\": 0"),
            "\"first_unit\" is 0 (p.json): expected a list of integers");
  EXPECT_EQ(message("\"first_unit\": [\n    0\n  ]", "\"first_unit\": [\"a\"]"),
            "\"first_unit\" is \"a\" (p.json): expected an integer between 0 and 16777216");
  EXPECT_EQ(message("\"name\": \"stem\"", "\"tensor\": 0, \"name\": \"stem\""),
            "\"tensor\" is 0 (p.json): expected an integer between 1 and 16777216");
  EXPECT_EQ(message("\"name\": \"stem\"", "\"shard\": -1, \"name\": \"stem\""),
            "\"shard\" is -1 (p.json): expected an integer between 0 and 16777216");
  EXPECT_EQ(message("\"name\": \"stem\"", "\"adjacent\": 1, \"name\": \"stem\""),
            "\"adjacent\" is 1 (p.json): expected true or false");
  EXPECT_EQ(message("\"name\": \"stem\"", "\"keep_gathered\": null, \"name\": \"stem\""),
            "\"keep_gathered\" is null (p.json): expected true or false");
  EXPECT_EQ(message("\"name\": \"stem\"", "\"tensr\": 2, \"name\": \"stem\""),
            "a unit has the unknown key \"tensr\" (p.json); did you mean \"tensor\"?");
  EXPECT_EQ(message("\"world\": 2", "\"world\": 0"),
            "\"world\" is 0 (p.json): expected an integer between 1 and 16777216");
  EXPECT_EQ(message("\"world\": 2", "\"world\": 18446744073709551615"),
            "\"world\" is 18446744073709551615 (p.json): expected an integer between 1 and 16777216");
  EXPECT_EQ(message("\"prefetch\": 1", "\"prefetch\": 1.5"),
            "\"prefetch\" is 1.5 (p.json): expected an integer between 0 and 65536");
  EXPECT_EQ(message("\"zero3\"", "\"zero5\""),
            "\"level\" is \"zero5\" (p.json): expected one of replicate, zero1, zero2, zero3");
  EXPECT_EQ(message("\"recompute\": \"none\"", "\"recompute\": false"),
            "\"recompute\" is false (p.json): expected a string");
  EXPECT_EQ(message("\"stem\"", "\"\""), "\"name\" of a unit is empty (p.json)");
  EXPECT_EQ(message("\"stem\"", "7"), "\"name\" is 7 (p.json): expected a string");
  EXPECT_EQ(message("  \"units\": [\n    {", "  \"units\": [\n 5, {"),
            "a unit is 5 (p.json): expected an object");
  EXPECT_EQ(error_text([&] { plan_from_json(to_json(Plan{}), "p.json"); }),
            "[plan.plan_from_json] \"units\" has no unit (p.json): expected a list of at least one unit");
  EXPECT_EQ(error_text([&] { plan_from_json("[1]", "p.json"); }),
            "[plan.plan_from_json] a plan is [1] (p.json): expected an object");
}

std::string contradiction(const Plan& plan) {
  const std::string text = error_text([&] { check(plan, "p.json"); });
  EXPECT_EQ(error_text([&] { plan_from_json(to_json(plan), "p.json"); }), text) << "is not read either";
  const std::string prefix = "[plan.check] ";
  EXPECT_TRUE(text.starts_with(prefix)) << text;
  return text.substr(std::min(prefix.size(), text.size()));
}

/// 8 ranks, 2 stages of 2 units each.
Plan two_stages() {
  Plan plan;
  plan.world = 8;
  plan.stages = 2;
  plan.micro_batches = 4;
  plan.first_unit = {0, 2};
  plan.units = {{"stem"}, {"blocks.0"}, {"blocks.1"}, {"head"}};
  return plan;
}

TEST(CheckPlan, ContradictionsOfStages) {
  EXPECT_EQ(error_text([] { check(two_stages(), "p.json"); }), "no error");
  const auto with = [](const std::function<void(Plan&)>& change) {
    Plan plan = two_stages();
    change(plan);
    return contradiction(plan);
  };
  EXPECT_EQ(with([](Plan& p) { p.stages = 3; }),
            "\"stages\" is 3 (p.json): expected a divisor of \"world\" (8)");
  EXPECT_EQ(with([](Plan& p) { p.micro_batches = 0; }),
            "\"micro_batches\" is 0 with 2 stages (p.json): expected 1 or more");
  EXPECT_EQ(with([](Plan& p) { p.virtual_stages = 2; }),
            "\"virtual_stages\" is 2 with \"schedule\" \"1f1b\" (p.json): expected 1");
  EXPECT_EQ(with([](Plan& p) { p.schedule = Schedule::kInterleaved; }),
            "\"virtual_stages\" is 1 with \"schedule\" \"interleaved\" (p.json): expected 2 or more");
  EXPECT_EQ(with([](Plan& p) {
              p.schedule = Schedule::kInterleaved;
              p.virtual_stages = 2;
              p.micro_batches = 3;
            }),
            "\"micro_batches\" is 3 with \"schedule\" \"interleaved\" (p.json): expected a multiple of "
            "\"stages\" (2)");
  EXPECT_EQ(with([](Plan& p) {
              p.schedule = Schedule::kInterleaved;
              p.virtual_stages = 2;
              p.stages = 1;
            }),
            "\"schedule\" is \"interleaved\" with 1 stage (p.json): expected 2 or more stages");
  EXPECT_EQ(with([](Plan& p) {
              p.ahead = 1;
              p.schedule = Schedule::kGpipe;
            }),
            "\"ahead\" is 1 with \"schedule\" \"gpipe\" (p.json): expected 0, or \"1f1b\" with 2 or more "
            "stages");
  EXPECT_EQ(with([](Plan& p) { p.stages = 8; }),
            "\"stages\" times \"virtual_stages\" is 8 (p.json): expected at most the 4 units");
  EXPECT_EQ(with([](Plan& p) { p.first_unit = {0}; }),
            "\"first_unit\" has 1 entry (p.json): expected 2, one for each virtual stage");
  EXPECT_EQ(with([](Plan& p) {
              p.first_unit = {1, 2};
            }),
            "entry 0 of \"first_unit\" is 1 (p.json): expected 0");
  EXPECT_EQ(with([](Plan& p) {
              p.first_unit = {0, 0};
            }),
            "entry 1 of \"first_unit\" is 0 (p.json): expected 1 to 3");
  EXPECT_EQ(with([](Plan& p) {
              p.first_unit = {0, 4};
            }),
            "entry 1 of \"first_unit\" is 4 (p.json): expected 1 to 3");
  EXPECT_EQ(with([](Plan& p) {
              p.stages = 4;
              p.first_unit = {0, 3, 3, 3};
            }),
            "entry 2 of \"first_unit\" is 3 (p.json): expected rising entries of at most 3");
}

TEST(CheckPlan, ContradictionsOfUnits) {
  const auto with = [](const std::function<void(UnitPlan&)>& change) {
    Plan plan = two_stages();
    change(plan.units[1]);
    return contradiction(plan);
  };
  EXPECT_EQ(with([](UnitPlan& unit) { unit.layout.tensor = 3; }),
            "\"tensor\" of \"blocks.0\" is 3 (p.json): expected a divisor of the 4 ranks of a stage");
  EXPECT_EQ(with([](UnitPlan& unit) { unit.layout.tensor = 8; }),
            "\"tensor\" of \"blocks.0\" is 8 (p.json): expected a divisor of the 4 ranks of a stage");
  EXPECT_EQ(with([](UnitPlan& unit) {
              unit.layout.tensor = 2;
              unit.shard = 4;
            }),
            "\"shard\" of \"blocks.0\" is 4 (p.json): expected 0 or a divisor of its 2 data-parallel ranks");
  EXPECT_EQ(with([](UnitPlan& unit) {
              unit.level = Level::kReplicate;
              unit.shard = 2;
            }),
            "\"shard\" of \"blocks.0\" is 2 (p.json): expected 0 with \"level\" \"replicate\"");
  EXPECT_EQ(with([](UnitPlan& unit) { unit.name = "stem"; }), "\"units\" has \"stem\" twice (p.json)");
}

// Any cut or changed byte either fails with one line or gives a plan that can be written again.
TEST(PlanJson, SurvivesDamage) {
  Plan hybrid = uniform_plan(small_model(), 4, Level::kZero1, true, 2);
  set_shard_ranks(&hybrid, 2);
  const std::string good = to_json(hybrid);
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
