// SPDX-License-Identifier: Apache-2.0
// How models are cut into stages, which ranks talk to each other, and what stages cost.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <random>

#include "../error_text.h"
#include "tessera/base/text.h"
#include "tessera/plan/memory.h"
#include "tessera/plan/plan.h"
#include "tessera/plan/spans.h"
#include "tessera/plan/traffic.h"

namespace tessera::plan {
namespace {

arch::ModelConfig vit(int64_t depth) {
  arch::VitConfig config;
  config.depth = depth;
  return {config};
}

/// PipelineSettings, of which a test gives the first few.
struct Settings {
  int64_t stages = 1;
  Schedule schedule = Schedule::k1F1B;
  int64_t virtual_stages = 1, micro_batches = 0;
  std::vector<int64_t> blocks = {};
  int64_t ahead = 0;
  PipelineSettings all() const { return {stages, schedule, virtual_stages, micro_batches, blocks, ahead}; }
};

Plan with(const Settings& settings, int64_t world = 8, int64_t depth = 12) {
  Plan plan = uniform_plan(vit(depth), world, Level::kZero3, false, 1);
  set_pipeline(&plan, vit(depth), settings.all());
  return plan;
}

std::string refusal(const Settings& settings, int64_t world = 8) {
  return error_text([&] { with(settings, world); });
}

TEST(SetPipeline, CutsAtTheGivenBlocks) {
  // Of 14 units: stem, 12 blocks, head.
  const Plan plan = with({4, Schedule::k1F1B, 1, 8, {3, 3, 4, 2}});
  EXPECT_EQ(plan.first_unit, (std::vector<int64_t>{0, 4, 7, 11}));
  EXPECT_EQ(plan.stage_ranks(), 2);
  EXPECT_EQ(units_of_virtual_stage(plan, 3), (std::pair<size_t, size_t>{11, 14}));
  EXPECT_EQ(with({2, Schedule::k1F1B, 1, 2, {0, 12}}).first_unit, (std::vector<int64_t>{0, 1}))
      << "the stem alone";
  EXPECT_EQ(with({2, Schedule::k1F1B, 1, 2, {12, 0}}).first_unit, (std::vector<int64_t>{0, 13}))
      << "the head alone";
  EXPECT_EQ(with({1}), uniform_plan(vit(12), 8, Level::kZero3, false, 1));
}

TEST(SetPipeline, NamesTheKeyThatIsWrong) {
  EXPECT_EQ(refusal({3, Schedule::k1F1B, 1, 3}),
            "[plan.set_pipeline] parallel.pipeline is 3: expected a divisor of the 8 ranks");
  EXPECT_EQ(refusal({16, Schedule::k1F1B, 1, 16}, 16),
            "[plan.set_pipeline] parallel.pipeline is 16: expected at most 14: the model has 14 units");
  EXPECT_EQ(refusal({2, Schedule::kInterleaved, 1, 2}),
            "[plan.set_pipeline] parallel.virtual_stages is 1 with parallel.schedule \"interleaved\": "
            "expected 2 or more");
  EXPECT_EQ(
      refusal({2, Schedule::k1F1B, 2, 2}),
      "[plan.set_pipeline] parallel.virtual_stages is 2 with parallel.schedule \"1f1b\": expected 1, or "
      "parallel.schedule \"interleaved\"");
  EXPECT_EQ(
      refusal({4, Schedule::kInterleaved, 2, 6}),
      "[plan.set_pipeline] parallel.micro_batches is 6 with parallel.schedule \"interleaved\": expected "
      "a multiple of the 4 stages");
  EXPECT_EQ(refusal({4, Schedule::kInterleaved, 4, 4}),
            "[plan.set_pipeline] parallel.virtual_stages is 4 of each of 4 stages: expected at most 3: the "
            "model has 14 units");
  EXPECT_EQ(refusal({2, Schedule::k1F1B, 1, 2, {6, 5}}),
            "[plan.set_pipeline] parallel.stages is [6, 5], 11 blocks in all: expected the model's 12");
  EXPECT_EQ(refusal({2, Schedule::k1F1B, 1, 2, {4, 4, 4}}),
            "[plan.set_pipeline] parallel.stages is [4, 4, 4]: expected 2 numbers, one for each (virtual) "
            "stage");
  EXPECT_EQ(refusal({4, Schedule::k1F1B, 1, 2, {6, 0, 6, 0}}),
            "[plan.set_pipeline] parallel.stages is [6, 0, 6, 0]: expected a block in every stage but the "
            "first and the last");
  EXPECT_EQ(refusal({1, Schedule::kInterleaved, 2, 0}),
            "[plan.set_pipeline] parallel.virtual_stages is 2: expected 1 without a pipeline");
  EXPECT_EQ(refusal({1, Schedule::k1F1B, 1, 4}),
            "[plan.set_pipeline] parallel.micro_batches is 4: expected 0 without a pipeline");
  EXPECT_EQ(refusal({2, Schedule::kGpipe, 1, 2, {}, 1}),
            "[plan.set_pipeline] parallel.ahead is 1 with parallel.schedule \"gpipe\": expected 0, or "
            "parallel.schedule \"1f1b\"");
  EXPECT_EQ(refusal({1, Schedule::k1F1B, 1, 0, {}, 1}),
            "[plan.set_pipeline] parallel.ahead is 1: expected 0 without a pipeline");
  EXPECT_EQ(refusal({1, Schedule::k1F1B, 1, 0, {12}}),
            "[plan.set_pipeline] parallel.stages is given: expected [] without a pipeline");
}

/// Of all cuts, the least cost of the largest part.
double best_cut(const std::vector<double>& costs, size_t begin, int64_t parts) {
  if (parts == 1) return std::accumulate(costs.begin() + static_cast<ptrdiff_t>(begin), costs.end(), 0.0);
  double best = std::numeric_limits<double>::infinity(), sum = 0;
  for (size_t end = begin + 1; end + static_cast<size_t>(parts) - 1 <= costs.size(); ++end) {
    sum += costs[end - 1];
    best = std::min(best, std::max(sum, best_cut(costs, end, parts - 1)));
  }
  return best;
}

TEST(CutByCost, IsTheBestOfAllCuts) {
  for (const int64_t depth : {1, 2, 5, 8, 12}) {
    const arch::ModelConfig config = vit(depth);
    const std::vector<double> costs = arch::unit_flops(config);
    for (int64_t parts = 1; parts <= std::min<int64_t>(depth + 2, 6); ++parts) {
      const std::vector<int64_t> begins = cut_by_cost(config, parts);
      ASSERT_EQ(static_cast<int64_t>(begins.size()), parts) << depth << " blocks";
      double largest = 0;
      for (size_t i = 0; i < begins.size(); ++i) {
        const auto end = i + 1 < begins.size() ? begins[i + 1] : static_cast<int64_t>(costs.size());
        ASSERT_LT(begins[i], end);
        largest = std::max(largest, std::accumulate(costs.begin() + begins[i], costs.begin() + end, 0.0));
      }
      EXPECT_DOUBLE_EQ(largest, best_cut(costs, 0, parts)) << depth << " blocks, " << parts << " parts";
    }
  }
}

TEST(Links, JoinTheSameRanksOfNeighbouringStages) {
  const Plan plan = with({4, Schedule::k1F1B, 1, 4});
  const std::vector<Link> links = links_of(plan);
  EXPECT_EQ(links.size(), 3 * 2 * 2U) << "boundaries, ranks of a stage, directions";
  for (const Link& link : links) {
    EXPECT_EQ(stage_of(plan, link.to) - stage_of(plan, link.from), link.forward ? 1 : -1);
    EXPECT_EQ(link.to % 2, link.from % 2);
  }
  // Two parts each: from the last stage back to the first in the middle.
  const Plan interleaved = with({2, Schedule::kInterleaved, 2, 2});
  std::map<int64_t, std::pair<int64_t, int64_t>> stages;  // by boundary: from, to
  for (const Link& link : links_of(interleaved)) {
    if (link.forward)
      stages[link.boundary] = {stage_of(interleaved, link.from), stage_of(interleaved, link.to)};
  }
  EXPECT_EQ(stages, (std::map<int64_t, std::pair<int64_t, int64_t>>{{0, {0, 1}}, {1, {1, 0}}, {2, {0, 1}}}));
  EXPECT_TRUE(links_of(with({1})).empty());
}

TEST(Spans, StayWithinAStage) {
  Plan plan = with({2, Schedule::k1F1B, 1, 2});
  set_tensor(&plan, vit(12), {2, false}, true);
  for (const Span& span : spans_of(plan)) {
    for (int64_t rank = 0; rank < plan.world; ++rank) {
      for (const int64_t other : ranks_of(span, rank)) EXPECT_EQ(stage_of(plan, other), stage_of(plan, rank));
    }
  }
  const std::vector<Span> spans = spans_of(plan);
  EXPECT_NE(std::ranges::find(spans, Span{1, 4}), spans.end()) << "all ranks of a stage";
}

// Memory of the activations alone: what does not depend on the micro-batches must not.
TEST(PipelineMemory, IsFlatInTheMicroBatchesUnder1F1BAndNotUnderGpipe) {
  const auto activations = [](Schedule schedule, int64_t micro_batches, int64_t ahead = 0) {
    CostInputs inputs;
    inputs.accumulates = true;
    return predict_memory(vit(12), with({4, schedule, 1, micro_batches, {}, ahead}), inputs, 4).activations;
  };
  EXPECT_DOUBLE_EQ(activations(Schedule::k1F1B, 8), activations(Schedule::k1F1B, 64));
  EXPECT_DOUBLE_EQ(activations(Schedule::k1F1B, 8, 1), activations(Schedule::k1F1B, 64, 1));
  EXPECT_GT(activations(Schedule::k1F1B, 8, 1), 1.1 * activations(Schedule::k1F1B, 8));
  EXPECT_GT(activations(Schedule::kGpipe, 64), 7 * activations(Schedule::kGpipe, 8));
  EXPECT_GT(activations(Schedule::kGpipe, 8), 1.5 * activations(Schedule::k1F1B, 8));
}

// Each value is on one stage alone.
TEST(PipelineMemory, StagesShareTheStates) {
  CostInputs inputs;
  const double whole = predict_memory(vit(12), with({1}, 2), inputs, 4).states;
  double sum = 0;
  for (const Memory& stage : predict_stage_memory(vit(12), with({4, Schedule::k1F1B, 1, 4}), inputs, 4)) {
    EXPECT_LT(stage.states, 0.4 * whole);
    sum += stage.states;
  }
  EXPECT_NEAR(sum, whole, 1e-6 * whole);
}

// One activation and one gradient a boundary and image: tokens x width values each.
TEST(PipelineTraffic, PassesActivationsAndGradients) {
  const arch::VitConfig config = std::get<arch::VitConfig>(vit(12).of);
  const double values = static_cast<double>(config.tokens() * config.width);
  const Plan plan = with({4, Schedule::k1F1B, 1, 4});
  EXPECT_DOUBLE_EQ(passed_per_image(vit(12), plan, 0, {.compute_bytes = 2}), 2 * values);
  EXPECT_DOUBLE_EQ(passed_per_image(vit(12), plan, 1, {.compute_bytes = 2}), 2 * 2 * values);
  EXPECT_DOUBLE_EQ(passed_per_image(vit(12), plan, 2, {.compute_bytes = 4}), 4 * 2 * values);
  EXPECT_DOUBLE_EQ(passed_per_image(vit(12), plan, 3, {.compute_bytes = 2}), 2 * values);
  EXPECT_EQ(passed_per_image(vit(12), with({1}), 0, {.compute_bytes = 2}), 0);
}

}  // namespace
}  // namespace tessera::plan
