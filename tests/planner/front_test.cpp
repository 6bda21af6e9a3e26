// SPDX-License-Identifier: Apache-2.0
// Fronts against the enumeration of all combinations, and against dynamic programming over a memory grid.
#include "tessera/planner/front.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <string>

#include "tessera/base/error.h"

namespace tessera::planner {
namespace {

using Counts = std::vector<int32_t>;

/// Times are multiples of 1/1024, so that their sums are exact in any order.
std::vector<Cost> random_choices(std::mt19937_64& random, size_t count, int64_t largest) {
  std::uniform_int_distribution<int64_t> number(0, largest);
  std::vector<Cost> choices;
  for (size_t i = 0; i < count; ++i)
    choices.push_back({number(random), static_cast<double>(number(random)) / 1024});
  return choices;
}

/// Memory and time of `counts` layers of each choice.
Cost cost_of(std::span<const int32_t> counts, const std::vector<Cost>& choices) {
  Cost total;
  for (size_t i = 0; i < choices.size(); ++i) {
    total.memory += counts[i] * choices[i].memory;
    total.time += counts[i] * choices[i].time;
  }
  return total;
}

/// The costs of all combinations of `layers` layers, each choice made any number of times.
void enumerate(int64_t layers, std::span<const Cost> choices, Cost so_far, std::vector<Cost>& found) {
  if (choices.empty()) {
    if (layers == 0) found.push_back(so_far);
    return;
  }
  for (int64_t count = 0; count <= layers; ++count) {
    const auto times = static_cast<double>(count);
    enumerate(layers - count, choices.subspan(1),
              {so_far.memory + count * choices[0].memory, so_far.time + times * choices[0].time}, found);
  }
}

/// The costs that no other one dominates, by rising memory, each once.
std::vector<Cost> undominated(const std::vector<Cost>& costs) {
  std::map<int64_t, double> front;
  for (const Cost& cost : costs) {
    const bool dominated = std::ranges::any_of(costs, [&](const Cost& other) {
      return other.memory <= cost.memory && other.time <= cost.time && other != cost;
    });
    if (!dominated) front[cost.memory] = cost.time;
  }
  std::vector<Cost> sorted;
  for (const auto& [memory, time] : front) sorted.push_back({memory, time});
  return sorted;
}

std::vector<Cost> points_of(const Front& front) { return {front.points().begin(), front.points().end()}; }

/// Every point's counts add up to the layers and to the point's cost.
void expect_counts_explain_points(const Front& front, int64_t layers, const std::vector<Cost>& choices) {
  ASSERT_EQ(front.choices(), choices.size());
  for (size_t i = 0; i < front.points().size(); ++i) {
    const std::span<const int32_t> counts = front.counts(i);
    int64_t total = 0;
    for (const int32_t count : counts) {
      EXPECT_GE(count, 0);
      total += count;
    }
    EXPECT_EQ(total, layers);
    EXPECT_EQ(cost_of(counts, choices), front.points()[i]);
  }
}

/// 200 random instances. Small numbers make equal and dominated sums frequent.
TEST(Front, EqualsEnumerationOnRandomInstances) {
  std::mt19937_64 random(1);
  for (int instance = 0; instance < 200; ++instance) {
    const auto layers = static_cast<int64_t>(random() % 7);
    const int64_t largest = instance % 2 == 0 ? 8 : 1'000'000;
    const std::vector<Cost> choices = random_choices(random, 1 + random() % 6, largest);
    std::vector<Cost> all;
    enumerate(layers, choices, {}, all);
    const Front front = front_of(layers, choices);
    EXPECT_EQ(points_of(front), undominated(all)) << "instance " << instance;
    expect_counts_explain_points(front, layers, choices);
  }
}

TEST(Front, SmallerNumbersOfLayersEqualTheirOwnFronts) {
  std::mt19937_64 random(2);
  const std::vector<Cost> choices = random_choices(random, 6, 1000);
  const std::vector<Front> fronts = fronts_up_to(6, choices);
  ASSERT_EQ(fronts.size(), 7U);
  for (size_t layers = 0; layers <= 6; ++layers) {
    std::vector<Cost> all;
    enumerate(static_cast<int64_t>(layers), choices, {}, all);
    EXPECT_EQ(points_of(fronts[layers]), undominated(all)) << layers << " layers";
    expect_counts_explain_points(fronts[layers], static_cast<int64_t>(layers), choices);
  }
}

/// 200 random pairs: the first may have more or fewer points than the second.
TEST(Front, SumEqualsEnumerationOnRandomInstances) {
  std::mt19937_64 random(3);
  for (int instance = 0; instance < 200; ++instance) {
    const auto few = static_cast<int64_t>(random() % 4), more = static_cast<int64_t>(random() % 4);
    const int64_t largest = instance % 2 == 0 ? 8 : 1'000'000;
    std::vector<Cost> choices = random_choices(random, 1 + random() % 4, largest);
    const std::vector<Cost> others = random_choices(random, 1 + random() % 4, largest);
    std::vector<Cost> one, two, all;
    enumerate(few, choices, {}, one);
    enumerate(more, others, {}, two);
    for (const Cost& a : one) {
      for (const Cost& b : two) all.push_back({a.memory + b.memory, a.time + b.time});
    }
    const Front front = sum(front_of(few, choices), front_of(more, others));
    EXPECT_EQ(points_of(front), undominated(all)) << "instance " << instance;
    choices.insert(choices.end(), others.begin(), others.end());
    expect_counts_explain_points(front, few + more, choices);
  }
}

/// At the size of a real search: the best time under many budgets equals dynamic programming over all
/// budgets.
TEST(Front, FortyLayersAndThirtyChoicesEqualDynamicProgramming) {
  constexpr int64_t kLayers = 40, kLargest = 100;
  std::mt19937_64 random(4);
  std::vector<Cost> choices;
  for (int i = 0; i < 30; ++i) {
    const auto memory = static_cast<int64_t>(1 + random() % kLargest);
    const auto noise = static_cast<double>(random() % 64);
    choices.push_back({memory, std::floor(1024. * 1024. / static_cast<double>(memory + 20)) + noise});
  }
  const double never = std::numeric_limits<double>::infinity();
  std::vector<double> least(kLayers * kLargest + 1, 0);  // by budget, for the layers so far
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    std::vector<double> next(least.size(), never);
    for (const Cost& choice : choices) {
      for (auto budget = static_cast<size_t>(choice.memory); budget < next.size(); ++budget) {
        const double rest = least[budget - static_cast<size_t>(choice.memory)];
        next[budget] = std::min(next[budget], rest + choice.time);
      }
    }
    least = next;
  }
  const Front front = front_of(kLayers, choices);
  expect_counts_explain_points(front, kLayers, choices);
  for (size_t budget = 0; budget < least.size(); ++budget) {
    const std::optional<size_t> best = front.best(static_cast<int64_t>(budget));
    EXPECT_EQ(best ? front.points()[*best].time : never, least[budget]) << "budget " << budget;
  }
}

TEST(Front, OfNoLayersIsOnePointWithoutCost) {
  const std::vector<Cost> choices = {{3, 1.}, {1, 3.}};
  const Front front = front_of(0, choices);
  EXPECT_EQ(points_of(front), (std::vector<Cost>{{0, 0.}}));
  EXPECT_EQ(Counts(front.counts(0).begin(), front.counts(0).end()), (Counts{0, 0}));
  EXPECT_EQ(front.best(0), 0U);
  EXPECT_EQ(points_of(Front()), (std::vector<Cost>{{0, 0.}}));
  EXPECT_EQ(points_of(sum(Front(), front_of(2, choices))), points_of(front_of(2, choices)));
}

TEST(Front, OfNoChoicesIsEmpty) {
  const Front front = front_of(3, {});
  EXPECT_TRUE(front.points().empty());
  EXPECT_FALSE(front.best(1'000'000).has_value());
  EXPECT_TRUE(sum(front, Front()).points().empty());
  EXPECT_TRUE(sum(Front(), front).points().empty());
}

TEST(Front, OfOneChoiceIsOnePoint) {
  const std::vector<Cost> choices = {{7, 0.5}};
  const Front front = front_of(5, choices);
  EXPECT_EQ(points_of(front), (std::vector<Cost>{{35, 2.5}}));
  EXPECT_EQ(Counts(front.counts(0).begin(), front.counts(0).end()), (Counts{5}));
}

TEST(Front, KeepsEqualPointsOnce) {
  const std::vector<Cost> choices = {{4, 2.}, {4, 2.}, {2, 4.}, {4, 2.}};
  const Front front = front_of(2, choices);
  EXPECT_EQ(points_of(front), (std::vector<Cost>{{4, 8.}, {6, 6.}, {8, 4.}}));
  expect_counts_explain_points(front, 2, choices);
}

/// Two layers of the middle choice dominate one of each other choice, although no single choice dominates it.
TEST(Front, DropsDominatedCombinationsOfUndominatedChoices) {
  const std::vector<Cost> choices = {{0, 10.}, {4, 4.}, {10, 0.}};
  const Front front = front_of(2, choices);
  EXPECT_EQ(points_of(front), (std::vector<Cost>{{0, 20.}, {4, 14.}, {8, 8.}, {14, 4.}, {20, 0.}}));
}

/// The best plan may need a choice that is never best for all layers: here the middle one fills a gap.
TEST(Front, KeepsChoicesAboveTheConvexHull) {
  const std::vector<Cost> choices = {{0, 10.}, {6, 6.}, {10, 0.}};
  const Front front = front_of(2, choices);
  const std::optional<size_t> best = front.best(9);
  ASSERT_TRUE(best.has_value());
  EXPECT_EQ(front.points()[*best], (Cost{6, 16.}));
  EXPECT_EQ(Counts(front.counts(*best).begin(), front.counts(*best).end()), (Counts{1, 1, 0}));
}

TEST(Front, BestIsTheLeastTimeWithinTheBudget) {
  const std::vector<Cost> choices = {{4, 2.}, {2, 4.}};
  const Front front = front_of(2, choices);  // {4, 8.}, {6, 6.}, {8, 4.}
  EXPECT_FALSE(front.best(-1).has_value());
  EXPECT_FALSE(front.best(3).has_value());
  EXPECT_EQ(front.best(4), 0U);
  EXPECT_EQ(front.best(7), 1U);
  EXPECT_EQ(front.best(std::numeric_limits<int64_t>::max()), 2U);
}

TEST(Front, MemoryLimitDropsExactlyThePointsAboveIt) {
  std::mt19937_64 random(5);
  for (int instance = 0; instance < 50; ++instance) {
    const std::vector<Cost> choices = random_choices(random, 5, 100);
    const auto limit = static_cast<int64_t>(random() % 500);
    std::vector<Cost> expected = points_of(front_of(5, choices));
    std::erase_if(expected, [&](const Cost& cost) { return cost.memory > limit; });
    EXPECT_EQ(points_of(front_of(5, choices, {.memory_limit = limit})), expected);
    EXPECT_EQ(points_of(sum(front_of(5, choices), Front(), {.memory_limit = limit})), expected);
  }
  EXPECT_TRUE(front_of(2, std::vector<Cost>{{4, 2.}}, {.memory_limit = 7}).points().empty());
  EXPECT_TRUE(front_of(0, {}, {.memory_limit = -1}).points().empty());
}

/// Every point of the exact front has one with no more memory and at most (1 + tolerance) times its time.
void expect_within(const Front& rough, const Front& exact, double tolerance) {
  for (const Cost& point : exact.points()) {
    const std::optional<size_t> best = rough.best(point.memory);
    ASSERT_TRUE(best.has_value());
    EXPECT_LE(rough.points()[*best].time, point.time * (1 + tolerance) * (1 + 1e-12));
  }
}

/// Choices on a curve have many combinations that do not dominate each other.
TEST(Front, ToleranceBoundsTheErrorAndShortensTheFront) {
  std::mt19937_64 random(6);
  std::vector<Cost> choices;
  for (int i = 0; i < 12; ++i) {
    const auto memory = static_cast<int64_t>(100'000 + random() % 1'000'000);
    choices.push_back({memory, std::floor(1e12 / static_cast<double>(memory))});
  }
  const Front exact = front_of(20, choices);
  const Front exact_sum = sum(exact, exact);
  for (const double tolerance : {0.001, 0.05, 0.5}) {
    const Front rough = front_of(20, choices, {.tolerance = tolerance});
    expect_within(rough, exact, tolerance);
    expect_counts_explain_points(rough, 20, choices);
    EXPECT_LT(rough.points().size(), exact.points().size());
    const Front rough_sum = sum(rough, rough, {.tolerance = tolerance});
    expect_within(rough_sum, exact_sum, (1 + tolerance) * (1 + tolerance) - 1);
    EXPECT_LT(rough_sum.points().size(), exact_sum.points().size() / 2);
  }
}

TEST(Front, RejectsInvalidCosts) {
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_THROW(front_of(-1, std::vector<Cost>{{1, 1.}}), InternalError);
  EXPECT_THROW(front_of(1, std::vector<Cost>{{-1, 1.}}), InternalError);
  EXPECT_THROW(front_of(1, std::vector<Cost>{{1, -1.}}), InternalError);
  EXPECT_THROW(front_of(1, std::vector<Cost>{{1, infinity}}), InternalError);
  EXPECT_THROW(front_of(1, std::vector<Cost>{{1, 1.}}, {.tolerance = -0.1}), InternalError);
  const int64_t half = std::numeric_limits<int64_t>::max() / 2 + 1;
  try {
    front_of(2, std::vector<Cost>{{half, 1.}});
    ADD_FAILURE() << "no error";
  } catch (const InternalError& error) {  // before any sum overflows
    EXPECT_NE(std::string(error.what()).find("of 2 layers"), std::string::npos) << error.what();
  }
  const Front large = front_of(1, std::vector<Cost>{{half, 1.}});
  EXPECT_THROW(sum(large, large), InternalError);
}

TEST(Front, RejectsGivenPointsThatAreNoFront) {
  EXPECT_EQ(Front(1, {{1, 2.}, {2, 1.}}, {3, 4}).counts(1)[0], 4);
  EXPECT_THROW(Front(1, {{1, 2.}, {1, 1.}}, {3, 4}), InternalError);
  EXPECT_THROW(Front(1, {{1, 2.}, {2, 2.}}, {3, 4}), InternalError);
  EXPECT_THROW(Front(1, {{1, 2.}}, {3, 4}), InternalError);
  EXPECT_THROW(Front(1, {{-1, 2.}}, {3}), InternalError);
  EXPECT_THROW(Front().counts(1), InternalError);
}

}  // namespace
}  // namespace tessera::planner
