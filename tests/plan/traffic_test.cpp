// SPDX-License-Identifier: Apache-2.0
// The bytes of a step, by hand. train.Levels/StepTraffic.IsWhatAStepSends counts those of real steps.
#include "tessera/plan/traffic.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/error_text.h"

namespace tessera::plan {
namespace {

constexpr double kStem = 16 * 12 + 16 + 16 + 5 * 16;  // patch embedding, class token, positions
constexpr double kBlock = 2 * 32 + 48 * 17 + 16 * 17 + 64 * 17 + 16 * 65;  // norms, qkv, proj, fc1, fc2
constexpr double kHead = 32 + 10 * 17;                                     // norm, classes

arch::ModelConfig model() {
  arch::VitConfig config;
  config.image_size = 4;
  config.patch_size = 2;
  config.width = 16;
  config.depth = 2;
  config.heads = 2;
  config.mlp_width = 64;
  config.classes = 10;
  return config;
}

TEST(StepTraffic, FollowsTheTable) {
  const CostInputs inputs{.compute_bytes = 2, .reduce_bytes = 4};
  const double all = kStem + 2 * kBlock + kHead;  // even: two ranks pad nothing
  struct Case {
    Level level;
    double gathered, reduced;
  };
  for (const Case& one : {Case{Level::kReplicate, 4 * all, 4 * all}, Case{Level::kZero1, 2 * all, 4 * all},
                          Case{Level::kZero2, 2 * all, 3 * 2 * all},
                          Case{Level::kZero3, 3 * 2 * (2 * all - kHead), 3 * 2 * all}}) {
    SCOPED_TRACE(to_string(one.level));
    const StepTraffic found =
        step_traffic(model(), uniform_plan(model(), 2, one.level, false, 1), inputs, 3, 5);
    EXPECT_EQ(found.gathered, one.gathered / 2);
    EXPECT_EQ(found.reduced, one.reduced / 2);
    EXPECT_EQ(found.total(), (one.gathered + one.reduced) / 2);
  }
}

TEST(StepTraffic, EachUnitHasItsOwnLevelAndPadding) {
  Plan plan = uniform_plan(model(), 3, Level::kZero3, true, 1);
  plan.units.front().level = Level::kReplicate;
  plan.units.back().level = Level::kZero1;
  const auto slice = [](double numbers) { return std::ceil(numbers / 3); };
  const StepTraffic found = step_traffic(model(), plan, {}, 1, 5);
  EXPECT_EQ(found.gathered, 2 * 4 * (slice(kStem) + 2 * 2 * slice(kBlock) + slice(kHead)));
  EXPECT_EQ(found.reduced, 2 * 4 * (slice(kStem) + 2 * slice(kBlock) + slice(kHead)));
}

// 2 of 4 ranks split a copy: parameters and gradients travel between 2, then a rank's sums between 2
// replicas.
TEST(StepTraffic, OfHybridSharding) {
  const CostInputs inputs{.compute_bytes = 2, .reduce_bytes = 4};
  const double head = kHead + 2, all = kStem + 2 * kBlock + head;  // padded to a multiple of 4
  struct Case {
    Level level;
    double gathered, reduced;
  };
  for (const Case& one : {Case{Level::kZero1, 2 * all, 4 * all}, Case{Level::kZero2, 2 * all, 3 * 2 * all},
                          Case{Level::kZero3, 3 * 2 * (2 * all - head), 3 * 2 * all}}) {
    SCOPED_TRACE(to_string(one.level));
    Plan plan = uniform_plan(model(), 4, one.level, false, 1);
    set_shard_ranks(&plan, 2);
    const StepTraffic found = step_traffic(model(), plan, inputs, 3, 5);
    const double replicas = 4 * (all / 2) / 2;  // half of a rank's half, in the reduce dtype, once a step
    EXPECT_EQ(found.gathered, one.gathered / 2 + replicas);
    EXPECT_EQ(found.reduced, one.reduced / 2 + replicas);
  }
}

TEST(StepTraffic, OneRankSendsNothing) {
  EXPECT_EQ(step_traffic(model(), uniform_plan(model(), 1, Level::kZero3, false, 1), {}, 4, 5).total(), 0);
}

// A cut unit has two entries, with groups of their own. 2 heads over 4 ranks: two ranks hold a head, two
// none.
TEST(UnitMessages, AreOfTheRankWithMost) {
  const CostInputs inputs{.compute_bytes = 2, .reduce_bytes = 4};
  Plan plan = uniform_plan(model(), 8, Level::kZero3, false, 1);
  set_tensor(&plan, model(), {.tensor = 4}, true);
  const std::vector<UnitMessages> most = stage_messages(model(), plan, inputs).at(0);
  ASSERT_EQ(most.size(), 6u);
  EXPECT_EQ(most[1].name, "blocks.0");
  EXPECT_EQ(most[2].name, "blocks.0/rows");
  EXPECT_EQ(most[2].index, 1u);
  EXPECT_EQ(most[1].shard, (Span{4, 2}));
  const double head = 3 * 8 * 16 + 3 * 8 + 16 * 8;  // queries, keys, values, projection
  const double hidden = 32 * 16 + 32 + 16 * 32;
  EXPECT_EQ(most[1].values, head + hidden);
  EXPECT_EQ(most[1].owned, (head + hidden) / 2);
  EXPECT_EQ(most[1].gather, (head + hidden) / 2 * 2);
  EXPECT_EQ(most[1].reduce, (head + hidden) / 2 * 2) << "in the dtype that backward makes";
  EXPECT_EQ(most[1].replicas, 0);
  double least = most[1].values;
  for (int64_t rank = 0; rank < 4; ++rank)
    least = std::min(least, unit_messages(model(), plan, inputs, rank)[1].values);
  EXPECT_EQ(least, 0);
}

TEST(UnitMessages, FrozenUnitsHaveNoGradients) {
  Plan plan = uniform_plan(model(), 2, Level::kReplicate, false, 1);
  plan.units[1].level = Level::kZero1;
  const std::vector<UnitMessages> units = unit_messages(model(), plan, {.frozen_units = 2}, 0);
  EXPECT_FALSE(units[1].trained);
  EXPECT_EQ(units[0].replicas, 0);
  EXPECT_EQ(units[1].reduce, 0);
  EXPECT_EQ(units[1].gather, kBlock / 2 * 4);
  EXPECT_TRUE(units[2].trained);
  EXPECT_EQ(units[2].replicas, kBlock / 2 * 4);
}

TEST(PassedInto, SendsGradientsBackWhereSomethingBeforeIsTrained) {
  Plan plan = uniform_plan(model(), 2, Level::kReplicate, false, 1);
  plan.stages = 2;
  plan.micro_batches = 1;
  plan.first_unit = {0, 2};
  const double tokens = 5 * 16 * 4;  // of width 16, fp32
  EXPECT_EQ(passed_into(model(), plan, 1, {}).forward, tokens);
  EXPECT_EQ(passed_into(model(), plan, 1, {.frozen_units = 1}).backward, tokens);
  EXPECT_EQ(passed_into(model(), plan, 1, {.frozen_units = 2}).backward, 0);
}

TEST(StepTraffic, APlanOfAnotherModelIsRefused) {
  Plan plan = uniform_plan(model(), 2, Level::kZero3, false, 1);
  plan.units.pop_back();
  EXPECT_EQ(error_text([&] { step_traffic(model(), plan, {}, 1, 5); }),
            "[plan.step_traffic] the plan has 3 units: expected the 4 units of the model");
}

}  // namespace
}  // namespace tessera::plan
