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

TEST(StepTraffic, APlanOfAnotherModelIsRefused) {
  Plan plan = uniform_plan(model(), 2, Level::kZero3, false, 1);
  plan.units.pop_back();
  EXPECT_EQ(error_text([&] { step_traffic(model(), plan, {}, 1, 5); }),
            "[plan.step_traffic] the plan has 3 units: expected the 4 units of the model");
}

}  // namespace
}  // namespace tessera::plan
