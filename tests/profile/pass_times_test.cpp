// SPDX-License-Identifier: Apache-2.0
// The passes of tiny models: every kind of unit in every layout has its entry.
#include "tessera/profile/pass_times.h"

#include <gtest/gtest.h>

#include <set>

#include "tessera/arch/cut.h"
#include "tessera/base/error.h"
#include "tessera/launch/launch.h"
#include "tessera/profile/busy_ranks_slowdown.h"
#include "tessera/profile/link_times.h"
#include "tessera/profile/measured_model.h"
#include "tessera/profile/slowdown.h"
#include "tessera/profile/step_end_time.h"
#include "tessera/shard/tensor_memory.h"
#include "tests/meta_kernels.h"

namespace tessera::profile {
namespace {

recipe::Recipe tiny(const std::string& model, const std::vector<std::string>& sets = {}) {
  return recipe::parse_recipe("name = \"tiny\"\n[model]\n" + model +
                                  "\n[data]\nsource = \"fake:8\"\n[train]\nsteps = 1\nbatch_per_rank = 2\n",
                              "test", ".", sets);
}

constexpr const char* kVit =
    "image_size = 16\npatch_size = 8\nwidth = 32\ndepth = 5\nheads = 2\nmlp_width = 64\nclasses = 5";

std::set<std::string> entries(const PassTimes& times) {
  std::set<std::string> found;
  for (const planner::UnitTimes& unit : times.units) {
    const auto [entry, is_new] =
        found.insert(unit.kind + " tensor " + std::to_string(unit.tensor) + " batch " +
                     std::to_string(unit.batch) + " " + plan::to_string(unit.recompute));
    EXPECT_TRUE(is_new) << *entry;
    EXPECT_GT(unit.forward, 0) << *entry;
    EXPECT_GT(unit.backward, 0) << *entry;
    EXPECT_GE(unit.spread, 0) << *entry;
  }
  return found;
}

std::set<std::string> expected_entries(const std::vector<std::string>& blocks,
                                       const std::vector<int64_t>& degrees,
                                       const std::vector<int64_t>& batches) {
  std::set<std::string> expected;
  for (const int64_t batch : batches) {
    const std::string of_batch = " batch " + std::to_string(batch);
    for (const char* end : {"stem", "head"})
      expected.insert(std::string(end) + " tensor 1" + of_batch + " none");
    for (const std::string& block : blocks) {
      for (const int64_t degree : degrees) {
        for (const char* recompute : {" none", " all", " keep_sums"}) {
          if (degree == 1 && recompute == std::string(" keep_sums")) continue;
          expected.insert(block + " tensor " + std::to_string(degree) + of_batch + recompute);
        }
      }
    }
  }
  return expected;
}

TEST(PassTimes, VitHasAnEntryForEveryLayout) {
  const PassTimes times = measure_passes(
      {.recipe = tiny(kVit), .tensor = {1, 2}, .batches = {1, 3}, .rounds = 2, .ranks = 2, .threads = 1});
  EXPECT_EQ(entries(times), expected_entries({"blocks.0", "blocks.4"}, {1, 2}, {1, 3}));
  EXPECT_EQ(times.units.front().kind, "stem");
  EXPECT_EQ(times.units.back().kind, "head");
  EXPECT_GT(times.optimizer_seconds, 0);
  EXPECT_GE(times.widen_seconds, 0);
  EXPECT_GE(times.accumulate_seconds, 0);
  EXPECT_GT(times.add_sum_seconds, 0);
  EXPECT_GT(times.lag.unit, 0);
  EXPECT_LE(times.lag.micro_batch, times.lag.unit);
}

// All that they leave waiting is in their pools, which go with them: nothing of one rank served another.
// (Over TCP the transport's threads make buffers in the pool of all threads.)
TEST(PassTimes, RanksTakeTheirMemoryFromPools) {
  shard::keep_tensor_memory();
  const int64_t waiting = shard::tensor_memory().waiting, peak = shard::tensor_memory().peak;
  const PassSettings settings{
      .recipe = tiny("image_size = 16\npatch_size = 8\nwidth = 128\ndepth = 3\nheads = 2\nmlp_width = 256\n"
                     "classes = 5"),
      .batches = {8},
      .rounds = 1,
      .ranks = 2};
  measure_passes(settings);
  EXPECT_EQ(shard::tensor_memory().waiting, waiting);
  EXPECT_GT(shard::tensor_memory().peak, peak);
  measure_busy_ranks_slowdown(settings);
  EXPECT_EQ(shard::tensor_memory().waiting, waiting);
  measure_links({.rounds = 1, .sizes = {1 << 20}});
  EXPECT_EQ(shard::tensor_memory().waiting, waiting);
}

// Units that are cut exchange activations with their peers, who exist where all ranks of a group are of the
// host.
TEST(PassTimes, CutUnitsAreMeasuredWithTheirPeers) {
  for (const bool shared_memory : {true, false}) {
    recipe::Recipe recipe = tiny(kVit);
    recipe.run.shared_memory = shared_memory;
    const PassTimes times =
        measure_passes({.recipe = recipe, .tensor = {1, 2}, .batches = {1, 3}, .rounds = 2, .ranks = 2});
    EXPECT_EQ(entries(times), expected_entries({"blocks.0", "blocks.4"}, {1, 2}, {1, 3}));
    for (const planner::UnitTimes& unit : times.units) {
      ASSERT_EQ(unit.peers.has_value(), unit.tensor == 2) << unit.kind;
      if (!unit.peers) continue;
      EXPECT_EQ(unit.peers->transport, shared_memory ? "shared memory" : "TCP");
      EXPECT_EQ(unit.peers->pieces, 4);
      EXPECT_TRUE(unit.peers->keep_gathered);
      // Every pass waits for messages, which take longer over TCP than a tiny block's products.
      if (shared_memory) continue;
      EXPECT_GT(unit.peers->forward, 1e-5) << unit.kind;
      EXPECT_GT(unit.peers->backward, 1e-5) << unit.kind;
    }
  }
}

TEST(PassTimes, FourRanksAreMeasuredInGroupsOfTwoAndFour) {
  const PassTimes times = measure_passes(
      {.recipe = tiny(kVit, {"model.heads=4"}), .tensor = {2, 4}, .batches = {2}, .rounds = 1, .ranks = 4});
  for (const planner::UnitTimes& unit : times.units) EXPECT_TRUE(unit.peers) << unit.kind << unit.tensor;
  EXPECT_EQ(times.units.size(), 12U);  // two kinds of blocks in three modes of recompute and two degrees
}

// Values whose gradients are written in fp32: parameters that are cut, and those that are not.
TEST(PassTimes, ValuesOfAUnitAreThoseThatItsRankHolds) {
  const recipe::Recipe recipe = measured_recipe(tiny(kVit), nullptr);
  const MeasuredModel model(recipe, {.tensor = 2});
  int64_t held = 0;
  for (const arch::ParameterSpec& spec : arch::parameters(recipe.model)) {
    if (spec.unit != "blocks.0") continue;
    for (const Box& box : arch::boxes_of(spec, 2, 1)) held += box.numel();
  }
  const plan::UnitPlan& block = plan::unit_of(model.plan(), "blocks.0");
  EXPECT_EQ(model.values_of(block), held);
  EXPECT_LT(model.values_of(block), model.values());
}

// Of 3 heads the first of two ranks holds one, and the other, for which a step waits, two.
TEST(PassTimes, TheRankThatComputesMostIsMeasured) {
  const recipe::Recipe recipe =
      tiny("image_size = 16\npatch_size = 8\nwidth = 48\ndepth = 2\nheads = 3\nmlp_width = 96\nclasses = 5");
  const MeasuredModel model(recipe, {.tensor = 2});
  int64_t most = 0, fewest = 0;
  for (const arch::ParameterSpec& spec : arch::parameters(recipe.model)) {
    for (const Box& box : arch::boxes_of(spec, 2, 1)) most += box.numel();
    for (const Box& box : arch::boxes_of(spec, 2, 0)) fewest += box.numel();
  }
  ASSERT_LT(fewest, most);
  EXPECT_NEAR(static_cast<double>(model.values()), static_cast<double>(most), 8) << "padded for two ranks";
}

TEST(PassTimes, RanksOfATensorGroupMayHaveUnequalShares) {
  const PassTimes times = measure_passes(
      {.recipe = tiny(kVit), .tensor = {4}, .batches = {1}, .rounds = 1, .ranks = 1, .threads = 1});
  for (const planner::UnitTimes& unit : times.units) EXPECT_EQ(unit.tensor, 4);
  EXPECT_EQ(times.units.size(), 6U);  // two kinds of blocks in three modes of recompute
}

TEST(PassTimes, ResNetIsMeasuredWhole) {
  const recipe::Recipe recipe = tiny("family = \"resnet\"\nblocks = [1, 2]\nimage_size = 32\nclasses = 5");
  const PassTimes times =
      measure_passes({.recipe = recipe, .batches = {2}, .rounds = 1, .ranks = 1, .threads = 1});
  std::set<std::string> kinds, measured;
  for (const std::string& kind : planner::unit_kinds(recipe.model)) kinds.insert(kind);
  for (const planner::UnitTimes& unit : times.units) measured.insert(unit.kind);
  EXPECT_EQ(measured, kinds);
}

TEST(PassTimes, ResNetHasNoLayersToCut) {
  const recipe::Recipe recipe = tiny("family = \"resnet\"\nimage_size = 32\nclasses = 5");
  EXPECT_THROW(measure_passes({.recipe = recipe, .tensor = {2}, .batches = {1}, .rounds = 1, .ranks = 2}),
               UserError);
}

// An op that mixed devices, or read values, would throw here.
TEST(MeasuredModelElsewhere, PassesStayOnTheirDevice) {
  std::vector<std::string> kinds;
  for (const char* compute : {"fp32", "bf16"}) {
    const recipe::Recipe recipe =
        measured_recipe(tiny(kVit, {std::string("precision.compute=") + compute}), &kinds);
    for (const int64_t tensor : {1, 2}) {
      for (const auto mode : {plan::Recompute::kNone, plan::Recompute::kAll}) {
        MeasuredModel model(recipe, {.tensor = tensor, .recompute = mode}, {at::kMeta, true});
        const auto input = random_input(recipe.model, 3, at::kMeta);
        EXPECT_TRUE(input.images.is_meta());
        const std::vector<UnitPass> passes = model.micro_batch(input, /*last=*/true);
        ASSERT_EQ(passes.size(), 5U);
        for (const UnitPass& pass : passes) EXPECT_GT(pass.backward, 0) << pass.unit;
      }
    }
  }
}

// A device makes an update only if its loss is below the limit.
TEST(MeasuredUpdate, HasNoLimitOfTheLoss) {
  EXPECT_TRUE(measured_update(tiny(kVit)).limit.allows(/*step_loss=*/1e30, /*gradient_norm=*/1));
}

TEST(ModelOfFewBlocks, KindsAreThoseOfTheWholeModel) {
  std::vector<std::string> kinds;
  const arch::ModelConfig few = model_of_few_blocks(arch::model_config("S/16"), &kinds);
  EXPECT_EQ(few.as<arch::VitConfig>().depth, 3);
  EXPECT_EQ(kinds, (std::vector<std::string>{"stem", "blocks.0", "blocks.0", "blocks.11", "head"}));
  arch::VitConfig one;
  one.depth = 1;
  kinds.clear();
  EXPECT_EQ(model_of_few_blocks(one, &kinds).as<arch::VitConfig>().depth, 1);
  EXPECT_EQ(kinds, (std::vector<std::string>{"stem", "blocks.0", "head"}));
}

TEST(StepEnd, OfTwoRanksTakesTime) {
  EXPECT_GT(measure_step_end(tiny(kVit), 2, 1), 0);
  EXPECT_GT(measure_step_end(tiny(kVit), 1, 1), 0);
}

TEST(BusyRanksSlowdown, OfOneRankIs1) {
  EXPECT_EQ(measure_busy_ranks_slowdown({.recipe = tiny(kVit), .batches = {2}, .rounds = 1, .ranks = 1}), 1);
}

TEST(BusyRanksSlowdown, RanksThatShareCoresSlowEachOther) {
  const int64_t ranks = 2 * launch::available_cores();
  if (ranks > 32) GTEST_SKIP() << "needs " << ranks << " ranks on this machine: expected at most 32";
  const PassSettings passes{.recipe = tiny(kVit), .batches = {1, 4}, .rounds = 3, .ranks = ranks};
  const double slowdown = measure_busy_ranks_slowdown(passes);
  EXPECT_GT(slowdown, 1.15) << "about 2, two ranks for each core; less beside other programs";
  EXPECT_LT(slowdown, 4);
}

TEST(MeasureSlowdown, IsExactly1ForSharedMemoryAndForOneRank) {
  const PassSettings passes{.recipe = tiny(kVit), .batches = {2}, .rounds = 1, .ranks = 2};
  for (const LinkSettings& links :
       {LinkSettings{.ranks = 2, .shared_memory = true}, LinkSettings{.ranks = 1, .shared_memory = false}}) {
    const Slowdown found = measure_slowdown(passes, links);
    EXPECT_EQ(found.compute, 1);
    EXPECT_EQ(found.link, 1);
  }
}

TEST(MeasureSlowdown, IsAtLeast1OverTcp) {
  const PassSettings passes{.recipe = tiny(kVit), .batches = {2}, .rounds = 1, .ranks = 2};
  const Slowdown found = measure_slowdown(passes, {.ranks = 2, .shared_memory = false});
  EXPECT_GE(found.compute, 1);
  EXPECT_GE(found.link, 1);
}

}  // namespace
}  // namespace tessera::profile
