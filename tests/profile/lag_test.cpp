// SPDX-License-Identifier: Apache-2.0
// Waiting for the slowest rank, from planted seconds.
#include "tessera/profile/lag.h"

#include <gtest/gtest.h>

namespace tessera::profile {
namespace {

using Passes = std::vector<UnitPass>;

constexpr double kNear = 1e-12;

TEST(LagOf, IsWhatTheMeanRankWaitsAtEachMeeting) {
  const Passes first = {{"stem", 1, 2}, {"head", 3, 4}}, second = {{"stem", 2, 2}, {"head", 1, 6}};
  const Lag lag = lag_of({{first}, {second}});
  EXPECT_NEAR(lag.unit, (2 + 2 + 3 + 6) / 10.5 - 1, kNear);  // the slowest of each pass; both ranks' mean
  EXPECT_NEAR(lag.micro_batch, 11 / 10.5 - 1, kNear);
}

TEST(LagOf, IsTheMeanOverMicroBatches) {
  const auto of = [](double seconds) { return Passes{{"stem", seconds, 0}}; };
  const Lag lag = lag_of({{of(1), of(1), of(1)}, {of(1), of(3), of(1.5)}});
  EXPECT_NEAR(lag.unit, (0 + 0.5 + 0.2) / 3, kNear);
  EXPECT_NEAR(lag.micro_batch, (0 + 0.5 + 0.2) / 3, kNear);
}

TEST(LagOf, OneRankWaitsForNobody) {
  EXPECT_EQ(lag_of({{{{"stem", 1, 2}}}}).unit, 0);
  EXPECT_EQ(lag_of({{}, {}}).micro_batch, 0);
}

}  // namespace
}  // namespace tessera::profile
