// SPDX-License-Identifier: Apache-2.0
#include "tessera/loop/named_sums.h"

#include <gtest/gtest.h>

#include "thread_world.h"

namespace tessera::loop {
namespace {

TEST(SumByName, RanksNeedNotHoldTheSameTensors) {
  run_thread_ranks(3, [](World& world) {
    std::vector<NamedSums> mine;
    if (world.rank() == 0) mine = {{0, "a", "stem", {1, 2}, 5}, {1, "a", "block", {10, 20}, 1}};
    if (world.rank() == 1) mine = {{2, "a", "head", {100, 200}, 7}, {1, "a", "block", {1, 1}, 3}};
    // Rank 2 holds nothing.
    const std::vector<NamedSums> found = sum_by_name(world, mine, "test");
    ASSERT_EQ(found.size(), 3U);
    EXPECT_EQ(found[0].name, "stem");
    EXPECT_EQ(found[0].sums, (std::vector<double>{1, 2}));
    EXPECT_EQ(found[0].largest, 5);
    EXPECT_EQ(found[1].name, "block");
    EXPECT_EQ(found[1].sums, (std::vector<double>{11, 21}));
    EXPECT_EQ(found[1].largest, 3);
    EXPECT_EQ(found[2].name, "head");
    EXPECT_EQ(found[2].sums, (std::vector<double>{100, 200}));
  });
}

TEST(FirstByOrder, IsTheFirstOfTheModelNotOfTheRanks) {
  run_thread_ranks(3, [](World& world) {
    const std::vector<OrderedName> names = {{7, "head.weight"}, {}, {3, "blocks.1.norm1.bias"}};
    EXPECT_EQ(first_by_order(world, names[static_cast<size_t>(world.rank())], "test"), "blocks.1.norm1.bias");
    EXPECT_EQ(first_by_order(world, {}, "test"), "");
  });
}

}  // namespace
}  // namespace tessera::loop
