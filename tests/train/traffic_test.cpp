// SPDX-License-Identifier: Apache-2.0
// What plan/traffic.h says that a step sends is what the mesh counts.
#include "tessera/plan/traffic.h"

#include <sys/resource.h>

#include <array>

#include "small_run.h"
#include "tessera/profile/link.h"

namespace tessera::train {
namespace {

plan::StepTraffic sent(mesh::Mesh& mesh) {
  const auto bytes = [&](const char* kind) {
    double sum = 0;
    for (const mesh::Group* group : mesh.groups()) {
      if (group->traffic().contains(kind)) sum += static_cast<double>(group->traffic().at(kind).bytes_sent);
    }
    return sum;
  };
  return {bytes("all_gather"), bytes("reduce_scatter")};
}

class StepTraffic : public ::testing::TestWithParam<std::string> {};

/// Trains with `sets` on `world` ranks and compares what two steps send.
void expect_traffic(const std::vector<std::string>& sets, int64_t world) {
  const recipe::Recipe recipe = make_recipe(sets);
  run_plan_ranks(recipe, world, [&](mesh::Mesh& mesh, const plan::Plan& layout) {
    const plan::StepTraffic expected =
        plan::step_traffic(recipe.model, layout, cost_inputs(recipe, world), recipe.train.accumulation,
                           recipe::resolve_batch(recipe.train, world).per_rank);
    const auto state = assemble(recipe, layout, mesh, true);
    Curve curve;
    train_until(*state, mesh, 1, curve);  // gathers what it compares at the end
    const plan::StepTraffic before = sent(mesh);
    train_until(*state, mesh, 1, curve);
    const plan::StepTraffic nothing = sent(mesh);
    train_until(*state, mesh, 3, curve);
    const plan::StepTraffic after = sent(mesh);
    EXPECT_EQ(after.reduced - nothing.reduced, 2 * expected.reduced);
    EXPECT_EQ(after.gathered - nothing.gathered - (nothing.gathered - before.gathered),
              2 * expected.gathered);
  });
}

constexpr std::array kPrecisions = {std::pair("bf16", "bf16"), std::pair("bf16", "fp32"),
                                    std::pair("fp32", "fp32")};

TEST_P(StepTraffic, IsWhatAStepSends) {
  at::set_num_threads(1);
  for (const int64_t world : {2, 3}) {
    for (const auto& [precision, reduce] : kPrecisions) {
      SCOPED_TRACE(concat(world, " ranks, ", precision, ", ", reduce));
      expect_traffic({"shard.level=" + GetParam(), "train.accumulation=2", "shard.units=blocks.1=zero1",
                      concat("precision.compute=", precision), concat("precision.reduce=", reduce)},
                     world);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, StepTraffic, ::testing::Values("replicate", "zero1", "zero2", "zero3"),
                         [](const auto& info) { return info.param; });

// 2 of 4 ranks split a copy, but all ranks block 1's, and none block 2's.
TEST(HybridTraffic, IsWhatAStepSends) {
  at::set_num_threads(1);
  for (const std::string level : {"zero1", "zero2", "zero3"}) {
    for (const auto& [precision, reduce] : kPrecisions) {
      SCOPED_TRACE(concat(level, ", ", precision, ", ", reduce));
      expect_traffic({"shard.level=" + level, "shard.ranks=2", "train.accumulation=2",
                      concat("shard.units=blocks.1=", level, "+ranks4, blocks.2=", level, "+ranks1"),
                      concat("precision.compute=", precision), concat("precision.reduce=", reduce)},
                     4);
    }
  }
}

TEST(Link, IsMeasuredBetweenThreads) {
  for (const bool shared : {true, false}) {
    const LinkRates rates = measure_local_link(2, at::kBFloat16, shared);
    EXPECT_GT(rates.gather, 1e6) << shared;
    EXPECT_GT(rates.reduce, 1e6) << shared;
    EXPECT_LT(rates.gather, 1e12) << shared;
    EXPECT_EQ(rates.how, shared ? "shared memory" : "TCP");
  }
  const LinkRates alone = measure_local_link(1, at::kFloat, true);
  EXPECT_EQ(alone.gather, 0);
  EXPECT_EQ(alone.reduce, 0);
}

TEST(Link, OfManyRanksIsMeasuredBetweenEight) {
  rlimit few{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &few), 0);
  const rlim_t before = few.rlim_cur;
  few.rlim_cur = 150;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  EXPECT_EQ(measure_local_link(64, at::kFloat, true).how, "shared memory (measured between 8)");
  few.rlim_cur = before;
  ::setrlimit(RLIMIT_NOFILE, &few);
}

}  // namespace
}  // namespace tessera::train
