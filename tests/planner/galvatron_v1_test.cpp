// SPDX-License-Identifier: Apache-2.0
// Optima of Galvatron's first version, found with planner::Front. The expected values come from a separate
// search over mixtures of at most two strategies, with the same published profile and formulas. They are
// predictions of that cost model, not measurements, and are given to 0.1 samples/s.
#include "galvatron_v1.h"

#include <gtest/gtest.h>

#include <array>

#include "tessera/base/error.h"

namespace tessera::planner::galvatron_v1 {
namespace {

constexpr double kHalfDigit = 0.06;

/// One cell of the table. No batch: several have the same throughput. No plan: none was published.
struct Expected {
  double throughput = 0;  // samples/s; 0: out of memory
  int64_t batch = 0;
  std::string plan{};
};

constexpr std::array<int64_t, 4> kGigabytes = {8, 12, 16, 20};
/// For 8, 12, 16 and 20 GB.
using Column = std::array<Expected, 4>;

void expect_column(int64_t layers, const std::vector<Strategy>& candidates, const Column& column) {
  for (size_t i = 0; i < column.size(); ++i) {
    SCOPED_TRACE(concat("ViT-Huge-", layers, ", ", kGigabytes[i], " GB"));
    const Optimum found = search({layers, kGigabytes[i], candidates});
    EXPECT_NEAR(found.throughput, column[i].throughput, column[i].throughput > 0 ? kHalfDigit : 0);
    if (column[i].batch > 0) {
      EXPECT_EQ(found.batch, column[i].batch);
    }
    if (!column[i].plan.empty()) {
      EXPECT_EQ(found.plan, column[i].plan);
    }
  }
}

TEST(GalvatronV1, HasTwentyTwoStrategies) {
  EXPECT_EQ(all_strategies().size(), 22U);
  EXPECT_EQ(dp_tp_strategies().size(), 6U);
  EXPECT_EQ(dp_pp_strategies().size(), 4U);
}

TEST(GalvatronV1, DataParallelism) {
  expect_column(32, {{1, 1, 8}}, {{{}, {14.5, 16}, {47.1, 64}, {69.5, 112}}});
  expect_column(48, {{1, 1, 8}}, {{{}, {}, {}, {17.9, 32}}});
}

TEST(GalvatronV1, TensorParallelism) {
  expect_column(32, {{1, 8, 1}}, {{{16.5}, {16.5}, {16.5}, {16.5}}});
  expect_column(48, {{1, 8, 1}}, {{{11.0}, {11.0}, {11.0}, {11.0}}});
}

TEST(GalvatronV1, GpipeOfEightStages) {
  expect_column(32, {{8, 1, 1}}, {{{22.4}, {22.4}, {22.4}, {22.4}}});
  expect_column(48, {{8, 1, 1}}, {{{15.0}, {15.0}, {15.0}, {15.0}}});
}

TEST(GalvatronV1, ShardedDataParallelism) {
  const Strategy sharded{1, 1, 8, true, true};
  expect_column(32, {sharded}, {{{34.2, 64}, {52.8, 112}, {66.6, 160}, {73.1, 216}}});
  expect_column(48, {sharded}, {{{12.5, 32}, {25.1, 72}, {33.3, 104}, {40.3, 136}}});
}

TEST(GalvatronV1, TwoStagesOfTwoByTwo) {
  const std::vector<Strategy> cube = {{2, 2, 2, true}, {2, 2, 2, false}};
  expect_column(32, cube, {{{32.4, 40}, {36.3, 80}, {37.0, 128}, {37.3, 168}}});
  expect_column(48, cube, {{{12.6, 16}, {22.7, 48}, {24.0, 72}, {24.5, 104}}});
}

TEST(GalvatronV1, DataAndTensorParallelismByLayer) {
  expect_column(32, dp_tp_strategies(),
                {{{30.0, 32, "11x1-2*-4 + 21x1-4-2*"},
                  {44.8, 64, "30x1-2-4* + 2x1-4-2*"},
                  {53.0, 88, "15x1-1-8 + 17x1-2-4*"},
                  {69.5, 112, "32x1-1-8"}}});
  expect_column(48, dp_tp_strategies(), {{{16.0, 16, "48x1-4-2*"}, {21.1, 32}, {27.8, 48}, {32.3, 72}}});
}

TEST(GalvatronV1, DataParallelismAndPipelines) {
  expect_column(
      32, dp_pp_strategies(),
      {{{34.2, 48, "8x4-1-2"}, {53.3, 72, "16x2-1-4"}, {58.2, 120, "16x2-1-4"}, {69.5, 112, "32x1-1-8"}}});
  expect_column(48, dp_pp_strategies(), {{{19.9, 24, "12x4-1-2"}, {23.3, 56}, {32.4, 56}, {37.5, 96}}});
}

TEST(GalvatronV1, AllStrategies) {
  expect_column(32, all_strategies(),
                {{{37.7, 56, "1x1-2*-4 + 31x1-2*-4f"},
                  {53.3, 72, "16x2-1-4"},
                  {67.5, 160, "2x1-1-8 + 30x1-1-8f"},
                  {75.4, 152, "20x1-1-8 + 12x1-1-8f"}}});
  expect_column(48, all_strategies(),
                {{{19.9, 24, "12x4-1-2"},
                  {26.4, 72, "24x2-1-4f"},
                  {33.5, 64, "23x2-1-4 + 1x2-1-4f"},
                  {40.5, 136, "1x1-1-8 + 47x1-1-8f"}}});
}

TEST(GalvatronV1, AllStrategiesToTwoDecimals) {
  const std::array<double, 4> throughputs = {37.73, 53.31, 67.54, 75.44};
  for (size_t i = 0; i < throughputs.size(); ++i)
    EXPECT_NEAR(search({32, kGigabytes[i], all_strategies()}).throughput, throughputs[i], 0.01);
}

/// Memory rounded up to bytes instead of MB leaves room for one more layer without SDP.
TEST(GalvatronV1, ExactMemoryGivesABetterPlanThanWholeMegabytes) {
  const Optimum found = search({32, 8, all_strategies(), 1024 * 1024});
  EXPECT_NEAR(found.throughput, 37.91, 0.01);
  EXPECT_EQ(found.plan, "2x1-2*-4 + 30x1-2*-4f");
}

}  // namespace
}  // namespace tessera::planner::galvatron_v1
