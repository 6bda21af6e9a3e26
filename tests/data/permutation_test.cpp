// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/permutation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <vector>

namespace tessera::data {
namespace {

std::vector<int64_t> whole(uint64_t key, int64_t size) {
  const Permutation permutation(key, size);
  std::vector<int64_t> order;
  for (int64_t i = 0; i < size; ++i) order.push_back(permutation(i));
  return order;
}

TEST(Permutation, HasEveryElementOnce) {
  for (int64_t size = 0; size < 300; ++size) {
    auto order = whole(3, size);
    std::sort(order.begin(), order.end());
    for (int64_t i = 0; i < size; ++i) ASSERT_EQ(order[static_cast<size_t>(i)], i) << size;
  }
  EXPECT_EQ(whole(5, 1000), whole(5, 1000));
  EXPECT_NE(whole(5, 1000), whole(6, 1000));
}

// 120 orders of 5 things, 24,000 draws: chi square with 119 degrees of freedom, mean 119, deviation 15.4.
TEST(Permutation, EveryOrderIsEquallyLikely) {
  constexpr int kDraws = 24'000;
  std::map<std::vector<int64_t>, int> counts;
  for (uint64_t key = 0; key < kDraws; ++key) ++counts[whole(key, 5)];
  EXPECT_EQ(counts.size(), 120U);
  double chi_square = 0;
  for (const auto& [order, count] : counts)
    chi_square += std::pow(count - kDraws / 120.0, 2) / (kDraws / 120.0);
  EXPECT_LT(chi_square, 119 + 5 * 15.4);
}

// The distance from one element to the next is as in a random order: (n + 1) / 3 on average, and small ones
// are as rare.
TEST(Permutation, NeighboursAreUnrelated) {
  constexpr int64_t kSize = 100'000;
  const auto order = whole(1, kSize);
  double sum = 0;
  int close = 0;
  for (size_t i = 1; i < order.size(); ++i) {
    const int64_t distance = std::abs(order[i] - order[i - 1]);
    sum += static_cast<double>(distance);
    close += distance <= 50 ? 1 : 0;
  }
  EXPECT_NEAR(sum / kSize, kSize / 3.0, 5 * 75);  // deviation of the mean: 0.236 n / sqrt(n)
  EXPECT_NEAR(close, 100, 50);                    // 2 * 50 / n of them
}

// 1.2 billion samples take no list: a few hundred thousand places of the order are computed alone.
TEST(Permutation, OfABillionNeedsNoMemory) {
  constexpr int64_t kSize = 1'200'000'000;
  const Permutation permutation(9, kSize);
  static_assert(sizeof permutation == 16);
  std::set<int64_t> seen;
  double sum = 0;
  for (int64_t i = 0; i < 200'000; ++i) {
    const int64_t element = permutation(i);
    ASSERT_GE(element, 0);
    ASSERT_LT(element, kSize);
    ASSERT_TRUE(seen.insert(element).second) << i;
    sum += static_cast<double>(element);
  }
  const double deviation = static_cast<double>(kSize) / std::sqrt(12.0 * 200'000);
  EXPECT_NEAR(sum / 200'000, static_cast<double>(kSize) / 2, 5 * deviation);
}

}  // namespace
}  // namespace tessera::data
