// SPDX-License-Identifier: Apache-2.0
// Idle ranks let the others of their host compute faster. Passes of a stage: 1 s and 2 s while all compute,
// 0.8 s and 1.6 s while no other rank does.
#include "tessera/planner/busy_ranks.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "set_times.h"

namespace tessera::planner {
namespace {

constexpr double kSlowdown = 1.25;

/// Measured with so many ranks on a host.
Profile slowed_profile(int64_t measured_ranks) {
  Profile profile = profile_of(2, {}, {1, 2}, {});
  set_links(profile, {});
  profile.provenance.ranks_of_host = measured_ranks;
  profile.busy_ranks_slowdown = kSlowdown;
  return profile;
}

double seconds(const Profile& profile, const plan::Plan& plan, int64_t ranks_of_host = 2) {
  const StepTime time = predict_step(profile, {.plan = plan,
                                               .accumulation = std::max<int64_t>(plan.micro_batches, 1),
                                               .ranks_of_host = ranks_of_host});
  expect_parts_add_up(time);
  return time.seconds;
}

plan::Plan gpipe(int64_t micro_batches) { return pipeline_of(2, plan::Schedule::kGpipe, 2, micro_batches); }

TEST(BusyRanks, AStageIsFasterWhileTheOtherIsIdle) {
  const Profile profile = slowed_profile(2);
  EXPECT_NEAR(seconds(profile, gpipe(1)), 0.8 * (1 + 1 + 2 + 2), kNear) << "one after the other";
  // Of four forward passes three are beside those of the other stage, and of four backward passes as well.
  EXPECT_NEAR(seconds(profile, gpipe(4)), (0.8 + 3 * 1 + 0.8) + (1.6 + 3 * 2 + 1.6), kNear);
}

/// Forward passes of 3 s and 1 s, none backward.
TEST(BusyRanks, APassGoesOnFasterWhenTheOtherStageStops) {
  Profile profile = slowed_profile(2);
  for (UnitTimes& unit : profile.units) {
    unit.backward = 0;
    unit.forward = unit.kind == "stem" ? 2 : unit.kind == "head" ? 0 : 1;
  }
  // Stage 0 alone: 2.4 s for its first pass of 3 s. Then stage 1 computes its 1 s beside it, and 2 s of the
  // second pass are left, which take 1.6 s. Stage 1 alone: 0.8 s.
  EXPECT_NEAR(seconds(profile, gpipe(2)), 2.4 + 1 + 1.6 + 0.8, kNear);
}

TEST(BusyRanks, OtherHostsDoNotCount) {
  Profile profile = slowed_profile(2);
  for (LinkTimes& link : profile.links) link.kind = kHosts;
  EXPECT_NEAR(seconds(profile, gpipe(4), /*ranks_of_host=*/1), 0.8 * (4 + 1) * 3, kNear);
}

// Four ranks on two cores: two have a core each, and of three each has two thirds of one.
TEST(BusyRanks, RanksThatShareCoresAreFasterWhileThereAreCores) {
  Profile profile = slowed_profile(4);
  profile.busy_ranks_slowdown = 2;
  const std::vector<std::pair<int64_t, double>> shares = {{1, 0.5}, {2, 0.5}, {3, 0.75}, {4, 1}, {5, 1}};
  for (const auto& [ranks, share] : shares)
    EXPECT_NEAR(seconds(profile, plan_of(2, ranks), ranks), share * 2 * 3, kNear) << ranks;
}

// Stages of two ranks on hosts of three: the first has one rank of the second beside it.
TEST(BusyRanks, RanksOfAHostCountByTheirStages) {
  Profile profile = slowed_profile(3);
  profile.busy_ranks_slowdown = 2;
  const BusyRanks ranks(profile, {.stages = 3, .ranks = 2, .ranks_of_host = 3});
  EXPECT_NEAR(ranks.share(0, {true, false, true}), 2. / 3, kNear);
  EXPECT_NEAR(ranks.share(0, {true, true, false}), 1, kNear);
  EXPECT_NEAR(ranks.share(1, {false, true, false}), 0.5, kNear) << "its second rank is on another host";
  EXPECT_NEAR(ranks.share(1, {true, true, false}), 1, kNear);
  EXPECT_NEAR(ranks.share(2, {true, false, true}), 2. / 3, kNear);
  EXPECT_NEAR(ranks.share(2, {false, true, true}), 1, kNear);
  EXPECT_NEAR(ranks.least_share(), 0.5, kNear);
  EXPECT_EQ(BusyRanks(profile_of(1, {}, {}, {}), {}).share(0, {false}), 1) << "without the constant";
}

}  // namespace
}  // namespace tessera::planner
