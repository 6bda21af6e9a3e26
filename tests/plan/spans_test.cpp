// SPDX-License-Identifier: Apache-2.0
// Groups of 8 ranks against lists written by hand.
#include "tessera/plan/spans.h"

#include <gtest/gtest.h>

namespace tessera::plan {
namespace {

using Groups = std::vector<std::vector<int64_t>>;

Plan ranks8(int64_t stages = 1) {
  Plan plan;
  plan.world = 8;
  plan.stages = stages;
  return plan;
}

UnitPlan unit(int64_t tensor, bool adjacent, int64_t shard, Level level = Level::kZero3) {
  UnitPlan unit{"blocks.0", level};
  unit.layout = {tensor, adjacent};
  unit.shard = shard;
  return unit;
}

/// All groups of a span, in order of their lowest ranks. Checks that every rank of a group finds the same
/// one.
Groups groups_of(const Span& span) {
  Groups groups;
  for (int64_t rank = 0; rank < 8; ++rank) {
    const auto ranks = ranks_of(span, rank);
    EXPECT_EQ(ranks.front(), base_of(span, rank));
    EXPECT_EQ(ranks.at(static_cast<size_t>(position_in(span, rank))), rank);
    if (base_of(span, rank) == rank) {
      groups.push_back(ranks);
    } else {
      EXPECT_EQ(ranks, ranks_of(span, ranks.front()));
    }
  }
  return groups;
}

const Groups kAll = {{0, 1, 2, 3, 4, 5, 6, 7}};
const Groups kAlone = {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}};

struct Case {
  UnitPlan unit;
  Groups tensor, data_parallel, shard, replicate;
};

void expect_groups(const Plan& plan, const Case& one) {
  EXPECT_EQ(groups_of(tensor_span(plan, one.unit)), one.tensor);
  EXPECT_EQ(groups_of(data_parallel_span(plan, one.unit)), one.data_parallel);
  EXPECT_EQ(groups_of(shard_span(plan, one.unit)), one.shard);
  EXPECT_EQ(groups_of(replicate_span(plan, one.unit)), one.replicate);
}

TEST(Spans, OfOneStage) {
  const Groups pairs = {{0, 1}, {2, 3}, {4, 5}, {6, 7}}, fours = {{0, 1, 2, 3}, {4, 5, 6, 7}};
  const Groups every_second = {{0, 2, 4, 6}, {1, 3, 5, 7}}, every_fourth = {{0, 4}, {1, 5}, {2, 6}, {3, 7}};
  for (const Case& one : {
           Case{unit(1, true, 0), kAlone, kAll, kAll, kAlone},
           Case{unit(1, true, 0, Level::kReplicate), kAlone, kAll, kAlone, kAll},
           Case{unit(1, true, 2), kAlone, kAll, pairs, every_second},
           Case{unit(1, true, 4), kAlone, kAll, fours, every_fourth},
           Case{unit(1, true, 1), kAlone, kAll, kAlone, kAll},
           Case{unit(1, true, 8), kAlone, kAll, kAll, kAlone},
           Case{unit(2, true, 0), pairs, every_second, every_second, kAlone},
           Case{unit(2, false, 0), every_fourth, fours, fours, kAlone},
           Case{unit(2, true, 2), pairs, every_second, {{0, 2}, {1, 3}, {4, 6}, {5, 7}}, every_fourth},
           Case{unit(2, false, 2), every_fourth, fours, pairs, {{0, 2}, {1, 3}, {4, 6}, {5, 7}}},
           Case{unit(4, true, 0), fours, every_fourth, every_fourth, kAlone},
           Case{unit(8, true, 0), kAll, kAlone, kAlone, kAlone},
       }) {
    SCOPED_TRACE(testing::Message() << "tensor " << one.unit.layout.tensor << " adjacent "
                                    << one.unit.layout.adjacent << " shard " << one.unit.shard);
    expect_groups(ranks8(), one);
  }
}

TEST(Spans, WhatIsNotCutIsOfTheWholeStage) {
  for (const int64_t tensor : {2, 4}) {
    const UnitPlan rows = rows_plan(unit(tensor, false, 2));
    EXPECT_EQ(rows.name, "blocks.0/rows");
    EXPECT_EQ(rows.level, Level::kZero1);
    expect_groups(ranks8(), {rows, kAlone, kAll, kAll, kAlone});
  }
  expect_groups(ranks8(), {rows_plan(unit(2, true, 0, Level::kReplicate)), kAlone, kAll, kAlone, kAll});
  Plan plan = ranks8();
  plan.units = {unit(2, true, 0)};
  EXPECT_EQ(spans_of(plan), (std::vector<Span>{{1, 2, true}, {1, 8}, {2, 4}}));
}

TEST(Spans, OfTwoStages) {
  const Plan plan = ranks8(2);
  EXPECT_EQ(plan.stage_ranks(), 4);
  const Groups fours = {{0, 1, 2, 3}, {4, 5, 6, 7}}, pairs = {{0, 1}, {2, 3}, {4, 5}, {6, 7}};
  const Groups crossed = {{0, 2}, {1, 3}, {4, 6}, {5, 7}};
  expect_groups(plan, {unit(1, true, 0), kAlone, fours, fours, kAlone});
  expect_groups(plan, {unit(1, true, 2), kAlone, fours, pairs, crossed});
  expect_groups(plan, {unit(2, true, 0), pairs, crossed, crossed, kAlone});
  expect_groups(plan, {unit(2, false, 0), crossed, pairs, pairs, kAlone});
}

TEST(Spans, OfAPlanAreDistinctAndSorted) {
  Plan plan = ranks8();
  plan.units = {unit(1, true, 0), unit(2, true, 2), unit(1, true, 2), unit(1, true, 0, Level::kReplicate),
                unit(2, true, 2)};
  const std::vector<Span> expected = {{1, 2}, {1, 2, true}, {1, 8}, {2, 2}, {2, 4}, {4, 2}};
  EXPECT_EQ(spans_of(plan), expected);
  plan.world = 1;
  plan.units = {unit(1, true, 0)};
  EXPECT_TRUE(spans_of(plan).empty());
}

TEST(Spans, InWords) {
  EXPECT_EQ(ranks_text({2, 4}, 2), "ranks 0,2,4,6 (stride 2)");
  EXPECT_EQ(ranks_text({2, 4}, 9), "ranks 9,11,13,15 (stride 2)");
  EXPECT_EQ(ranks_text({1, 2}, 5), "ranks 4,5");
  EXPECT_EQ(ranks_text({}, 5), "rank 5");
  EXPECT_EQ(ranks_text({1, 64}, 5), "ranks 0,1,2,...,63");
}

}  // namespace
}  // namespace tessera::plan
