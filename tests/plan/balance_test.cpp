// SPDX-License-Identifier: Apache-2.0
// Ranks with one sample more than the others, counted by group.
#include "tessera/plan/balance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

namespace tessera::plan {
namespace {

/// The difference of the groups with most and fewest of `ranks`, over all spans.
int64_t imbalance(int64_t world, const std::vector<int64_t>& ranks, const std::vector<Span>& spans) {
  int64_t most = 0;
  for (const Span& span : spans) {
    std::map<int64_t, int64_t> counts;
    for (int64_t rank = 0; rank < world; ++rank) counts[base_of(span, rank)];
    for (const int64_t rank : ranks) ++counts[base_of(span, rank)];
    const auto [low, high] =
        std::ranges::minmax_element(counts, {}, [](const auto& one) { return one.second; });
    most = std::max(most, high->second - low->second);
  }
  return most;
}

std::vector<Span> adjacent_and_strided(int64_t world, const std::vector<int64_t>& degrees) {
  std::vector<Span> spans;
  for (const int64_t degree : degrees) {
    spans.push_back({1, degree, true});
    spans.push_back({world / degree, degree, true});
  }
  return spans;
}

std::vector<int64_t> divisors(int64_t world) {
  std::vector<int64_t> all;
  for (int64_t i = 2; i < world; ++i) {
    if (world % i == 0) all.push_back(i);
  }
  return all;
}

TEST(BalancedRanks, AreTheFirstWithoutTensorGroups) {
  EXPECT_EQ(balanced_ranks(5, 3, {}), (std::vector<int64_t>{0, 1, 2}));
  EXPECT_TRUE(balanced_ranks(5, 0, {}).empty());
}

// 12 samples on 8 ranks: adjacent groups of 4 get 6 each. The first ranks would give 8 and 4.
TEST(BalancedRanks, TwelveSamplesOnEightRanks) {
  const std::vector<Span> spans = {{1, 4, true}};
  const std::vector<int64_t> ranks = balanced_ranks(8, 4, spans);
  EXPECT_EQ(std::ranges::count_if(ranks, [](int64_t rank) { return rank < 4; }), 2);
  EXPECT_EQ(ranks.size(), 4U);
}

/// Every degree at once, adjacent and strided.
TEST(BalancedRanks, BalanceEverySpanOfPowersOfTwo) {
  for (const int64_t world : {2, 4, 8, 16, 32, 64}) {
    const std::vector<Span> spans = adjacent_and_strided(world, divisors(world));
    for (int64_t count = 0; count <= world; ++count) {
      const std::vector<int64_t> ranks = balanced_ranks(world, count, spans);
      EXPECT_EQ(std::set<int64_t>(ranks.begin(), ranks.end()).size(), static_cast<size_t>(count));
      EXPECT_TRUE(std::ranges::is_sorted(ranks));
      EXPECT_LE(imbalance(world, ranks, spans), 1) << count << " of " << world;
    }
  }
}

/// One degree, adjacent and strided, whatever the number of ranks.
TEST(BalancedRanks, BalanceAnyDegree) {
  for (int64_t world = 2; world <= 48; ++world) {
    for (const int64_t degree : divisors(world)) {
      const std::vector<Span> spans = adjacent_and_strided(world, {degree});
      for (int64_t count = 0; count <= world; ++count) {
        EXPECT_LE(imbalance(world, balanced_ranks(world, count, spans), spans), 1)
            << count << " of " << world << ", degree " << degree;
      }
    }
  }
}

/// Degrees that do not divide each other cannot always be balanced: of 6 ranks 3, by twos and by threes.
TEST(BalancedRanks, AreNeverFarFromBalanced) {
  for (const int64_t world : {6, 12, 18, 24, 30, 36, 48}) {
    const std::vector<Span> spans = adjacent_and_strided(world, divisors(world));
    for (int64_t count = 0; count <= world; ++count)
      EXPECT_LE(imbalance(world, balanced_ranks(world, count, spans), spans), 2) << count << " of " << world;
  }
}

}  // namespace
}  // namespace tessera::plan
