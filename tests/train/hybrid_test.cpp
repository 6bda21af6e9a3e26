// SPDX-License-Identifier: Apache-2.0
// Hybrid sharding (shard.ranks): the state is split over groups of ranks and replicated over these groups.
#include <atomic>
#include <filesystem>

#include "small_run.h"
#include "tessera/base/file.h"
#include "tessera/recipe/executable_plan.h"
#include "tests/error_text.h"

namespace tessera::train {
namespace {

constexpr const char* kTwo = "shard.ranks=2";

class HybridLevels : public ::testing::TestWithParam<std::string> {};

TEST_P(HybridLevels, LossCurveEqualsOneRank) {
  static const Curve expected = train_layout(1, {}, 4);
  for (const char* accumulation : {"train.accumulation=1", "train.accumulation=2"}) {
    for (const char* recompute : {"shard.recompute=false", "shard.recompute=true"}) {
      SCOPED_TRACE(concat(accumulation, ", ", recompute));
      const Curve found =
          train_layout(4, {kTwo, concat("shard.level=", GetParam()), accumulation, recompute}, 4);
      EXPECT_NEAR(found.losses[0], expected.losses[0], 1e-6 * expected.losses[0]);
      expect_close(found, expected, 1e-5);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, HybridLevels, ::testing::Values("zero1", "zero2", "zero3"),
                         [](const auto& info) { return info.param; });

// Groups of 2, of 4 (all ranks), of 1 and replicated units in one model.
TEST(Hybrid, GroupsOfSingleUnitsAgree) {
  const Curve expected = train_layout(1, {}, 4);
  const Curve found = train_layout(
      4, {kTwo, "shard.units=stem=replicate, blocks.0=zero3+ranks4+recompute, blocks.1=zero2+ranks1"}, 4);
  expect_close(found, expected, 1e-5);
}

TEST(Hybrid, OptimizersOfWholeTensorsEqualOneRank) {
  for (const char* name : {"lamb", "lars", "adafactor", "muon"}) {
    SCOPED_TRACE(name);
    const std::string optimizer = concat("optimizer.name=", name), width = "model.width=48";
    expect_close(train_layout(4, {kTwo, optimizer, width}, 4), train_layout(1, {optimizer, width}, 4), 2e-5);
  }
}

TEST(Hybrid, OffloadIsBitwise) {
  const Curve here = train_layout(4, {kTwo}, 3), there = train_layout(4, {kTwo, "shard.offload=all"}, 3);
  EXPECT_EQ(here.losses, there.losses);
  expect_equal(there.parameters, here.parameters);
}

// Each rank owns half of every unit, and rank r holds the same half as rank r + 2, bit by bit.
TEST(Hybrid, ReplicasHoldTheSameHalf) {
  const recipe::Recipe recipe = make_recipe({kTwo});
  run_plan_ranks(recipe, 4, [&](mesh::Mesh& mesh, const plan::Plan& plan) {
    EXPECT_EQ(mesh.describe(),
              concat("rank ", mesh.rank(), "/4 dp", mesh.rank() / 2, " shard", mesh.rank() % 2));
    const auto state = assemble(recipe, plan, mesh, true);
    Curve curve;
    train_until(*state, mesh, 3, curve);
    for (const auto& unit : state->sharded->units()) {
      EXPECT_EQ(unit->shard_numel() * 2, unit->padded_numel());
      EXPECT_EQ(unit->replica(), mesh.rank() / 2);
      at::Tensor all = at::empty({4, unit->shard_numel()});
      mesh.world().all_gather(all, unit->master(), "masters").wait();
      EXPECT_TRUE(all[0].equal(all[2])) << unit->name();
      EXPECT_TRUE(all[1].equal(all[3])) << unit->name();
      EXPECT_FALSE(all[0].equal(all[1])) << unit->name();
    }
  });
}

int64_t bytes_in(const std::filesystem::path& folder) {
  int64_t bytes = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.path().extension() == ".safetensors") bytes += static_cast<int64_t>(entry.file_size());
  }
  return bytes;
}

/// Loads the newest checkpoint of `from`, if any, trains to `until` and saves to `to`.
Curve train_on(const std::vector<std::string>& sets, const std::filesystem::path& from, int64_t until,
               const std::filesystem::path& to) {
  Curve result;
  const recipe::Recipe recipe = make_recipe(sets);
  run_plan_ranks(recipe, 4, [&](mesh::Mesh& mesh, const plan::Plan& plan) {
    const auto state = assemble(recipe, plan, mesh, true);
    if (!from.empty()) load_state(*state, *checkpoint::find(from, "latest"));
    Curve curve;
    train_until(*state, mesh, until, curve);
    save_state(*state, mesh, to, false);
    if (mesh.rank() == 0) result = curve;
  });
  return result;
}

TEST(HybridResume, ToAllRanksAndBackIsBitwise) {
  const std::vector<std::string> all = {"ema.decay=0.9"}, hybrid = {"ema.decay=0.9", kTwo};
  const Curve straight = train_layout(4, hybrid, 6);
  const TemporaryFolder a("tessera-hybrid"), b("tessera-hybrid"), c("tessera-hybrid");
  train_on(hybrid, "", 3, a.path());
  train_on(all, a.path(), 3, b.path());  // loads and saves
  const Curve resumed = train_on(hybrid, b.path(), 6, c.path());
  EXPECT_EQ(std::vector<double>(straight.losses.begin() + 3, straight.losses.end()), resumed.losses);
  expect_equal(resumed.parameters, straight.parameters);
  // Replicas are saved once: weights, two moments and an average in fp32, and less than half as much of
  // headers.
  const auto values = static_cast<double>(arch::parameter_count(make_recipe().model));
  for (const auto* folder : {&a, &b}) {
    EXPECT_GE(bytes_in(folder->path()), 16 * values);
    EXPECT_LT(bytes_in(folder->path()), 1.5 * 16 * values);
  }
}

TEST(ExecutablePlan, RefusesWhatNothingExecutesByName) {
  const recipe::Recipe recipe = make_recipe();
  const auto refusal = [&](const std::function<void(plan::Plan&)>& change) {
    plan::Plan plan = make_plan(recipe, 4);
    change(plan);
    plan::check(plan, "p.json");  // sound, but for other programs
    const std::string text = error_text([&] { recipe::check_executable(plan); });
    const auto mesh = mesh::Mesh::pretend(0, {{"shard", 4}});
    EXPECT_EQ(error_text([&] { assemble(recipe, plan, *mesh, true); }), text);
    return text;
  };
  const std::string start = "[train.plan] training does not support ";
  EXPECT_EQ(
      refusal([](plan::Plan& plan) { plan.units[1].keep_gathered = true; }),
      start +
          "\"keep_gathered\" true with \"tensor\" 1 of unit \"blocks.0\" of the plan yet: expected false");
  EXPECT_EQ(refusal([](plan::Plan& plan) { plan.units[2].recompute = plan::Recompute::kKeepSums; }),
            start +
                "\"recompute\" \"keep_sums\" with \"tensor\" 1 of unit \"blocks.1\" of the plan yet: "
                "expected \"none\" or "
                "\"all\"");
  EXPECT_EQ(error_text([&] {
              recipe::check_executable(make_plan(make_recipe({kTwo, "shard.recompute=true"}), 4));
            }),
            "no error");
}

TEST(HybridPlan, SplittingOverAllRanksSavesMemory) {
  launch::Ranks ranks;
  ranks.world = 4;
  const auto savings = [&](const recipe::Recipe& recipe) {
    return savings_hint(memory_savings(recipe, make_plan(recipe, 4), 12, ranks));
  };
  EXPECT_NE(savings(make_recipe({kTwo})).find("shard.ranks = 0 would save "), std::string::npos);
  EXPECT_EQ(savings(make_recipe()).find("shard.ranks"), std::string::npos);
}

TEST(HybridPlan, RanksThatDoNotDivideAreRefused) {
  EXPECT_EQ(error_text([] { make_plan(make_recipe({"shard.ranks=3"}), 4); }),
            "[plan.set_shard_ranks] shard.ranks is 3: expected 0 or a divisor of the 4 ranks that train");
  const plan::Plan plan = make_plan(make_recipe({kTwo, "shard.units=head=zero3+ranks4"}), 8);
  EXPECT_EQ(plan.units.front().shard, 2);
  EXPECT_EQ(plan.units.back().shard, 4);
  EXPECT_NE(plan::to_json(plan).find("\"shard\": 4"), std::string::npos);
}

}  // namespace
}  // namespace tessera::train
