// SPDX-License-Identifier: Apache-2.0
// Bounds of passes beside the simulated step.
#include "tessera/planner/unit_work.h"

#include <algorithm>

#include "set_times.h"
#include "tessera/plan/traffic.h"
#include "tessera/planner/lookup.h"

namespace tessera::planner {
namespace {

/// Seconds that the first forward pass takes at least, where all blocks have one layout.
double forward_bound(const ProfileTables& tables, const StepQuestion& question) {
  const auto messages = plan::stage_messages(tables.profile.model, question.plan, question.inputs).front();
  std::vector<UnitWork> works = unit_works(tables, question, messages, {});
  std::vector<UnitWork*> blocks;
  for (size_t i = 1; i + 1 < works.size(); ++i) blocks.push_back(&works[i]);
  set_neighbours(tables.profile, /*share=*/1, blocks);
  double most = 0;
  for (const BoundForm& form : forms_of_one_layout(tables.profile).forward) {
    double sum = 0;
    for (size_t i = 0; i < works.size(); ++i)
      sum += form.of(works[i].at(unit_position(i, 0, works.size(), works.size()))[kFirstForward]);
    most = std::max(most, sum);
  }
  return most;
}

// The stem hides 10 s of the first block's gather, which takes 50 s.
TEST(UnitWork, ALongStemHidesMoreOfAGatherThanABlock) {
  Profile profile = profile_of(1, {10, 20}, {1, 2}, {1, 2});
  set_links(profile, {});
  set_link(profile, "all_gather", {.latency = 50});
  plan::Plan plan = plan_of(1, 2, plan::Level::kZero3);
  plan.units.back().level = plan::Level::kReplicate;
  const StepQuestion question{.plan = plan};
  const auto forward = predict_step(profile, question).timing.stages[0].front();
  EXPECT_NEAR(forward.end - forward.begin, 50 + 50 + 1 + 1, kNear);
  EXPECT_NEAR(forward_bound(ProfileTables(profile), question), 50 + 50 + 1 + 1, kNear);
}

}  // namespace
}  // namespace tessera::planner
