// SPDX-License-Identifier: Apache-2.0
// The search against plans that are all tried, one after another (brute_force.h).
#include "tessera/planner/search.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <iostream>
#include <set>
#include <span>

#include "brute_force.h"
#include "tests/error_text.h"

namespace tessera::planner {
namespace {

using plan::Level;

/// At most `most` layouts of a block for each number of stages, drawn.
Allowed some_layouts(RandomMachines& random, const RandomMachine& machine, size_t most) {
  std::vector<std::pair<int64_t, plan::UnitPlan>> chosen;
  for (int64_t stages = 1; stages <= machine.question.ranks; ++stages) {
    if (machine.question.ranks % stages != 0) continue;
    auto all = layouts_of(machine.question.ranks / stages,
                          std::min(machine.profile.provenance.ranks_of_host, machine.question.ranks));
    for (size_t i = 0; i < most && !all.empty(); ++i) {
      const auto at = static_cast<size_t>(random.between(0, static_cast<double>(all.size()) - 1e-9));
      chosen.emplace_back(stages, all[at]);
      all.erase(all.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }
  return [chosen](int64_t stages, const plan::UnitPlan& block) {
    return std::ranges::find(chosen, std::pair(stages, block)) != chosen.end();
  };
}

struct Sizes {
  int64_t depth = 1, ranks = 2;
  size_t layouts = 6;
};
constexpr Sizes kSizes[] = {{1, 2, 6}, {2, 2, 3}, {3, 2, 2}, {1, 4, 4},
                            {2, 4, 2}, {2, 1, 6}, {2, 3, 3}, {1, 6, 3}};
/// Of the slow test: as many layouts of a block as there are, up to 6, in models of up to 6 units.
constexpr Sizes kLargerSizes[] = {{4, 2, 4}, {3, 2, 6}, {4, 1, 6}, {2, 4, 4},
                                  {3, 3, 4}, {4, 3, 3}, {1, 6, 6}, {2, 2, 6}};

/// Machines of the search's tests: TESSERA_SEARCH_MACHINES, of larger sizes; 24 if it is not set.
int64_t machine_count() {
  const char* count = std::getenv("TESSERA_SEARCH_MACHINES");
  return count == nullptr ? 24 : std::atoll(count);
}
std::span<const Sizes> sizes_of_machines() {
  return std::getenv("TESSERA_SEARCH_MACHINES") == nullptr ? std::span<const Sizes>(kSizes) : kLargerSizes;
}

TEST(Search, FindsWhatTryingEveryPlanFinds) {
  RandomMachines random(20260101);
  int64_t tried = 0, simulated = 0, nothing_fits = 0, missed = 0;
  double bound_gap = 0, most_bound_gap = 0, fronts_gap = 0;
  const int64_t machines = machine_count();
  for (int64_t i = 0; i < machines; ++i) {
    const Sizes& sizes = sizes_of_machines()[static_cast<size_t>(i) % std::size(kSizes)];
    RandomMachine machine = random.next(sizes.depth, sizes.ranks);
    SearchQuestion& question = machine.question;
    question.allowed = some_layouts(random, machine, sizes.layouts);
    question.memory = 0;  // of what does not fit only the memory is predicted
    BruteForce extremes(machine, false);
    extremes.run();
    const double low = extremes.least_memory(), high = extremes.most_memory();
    SCOPED_TRACE(testing::Message() << "machine " << i << ", depth " << sizes.depth << ", ranks "
                                    << sizes.ranks);
    question.memory = low;
    question.all_plans = 1e12;
    EXPECT_FALSE(search(machine.profile, question).best.empty()) << "the plan that needs least is not found";
    question.memory = low + (high - low) * random.between(i % 12 == 11 ? -0.02 : 0, i % 12 == 11 ? 0 : 0.8);
    BruteForce brute(machine, false), uniform(machine, true);
    const double best = brute.run(), best_uniform = uniform.run();
    tried += brute.tried();

    const SearchResult every = search(machine.profile, question);
    simulated += every.simulated;
    question.all_plans = 0;
    const SearchResult fronts = search(machine.profile, question);
    if (std::isinf(best)) {
      ++nothing_fits;
      EXPECT_TRUE(every.best.empty() && fronts.best.empty());
      ASSERT_TRUE(every.smallest && fronts.smallest);
      EXPECT_NEAR(every.smallest->most_memory(), low, 1e-6 * low);
      continue;
    }
    ASSERT_FALSE(every.best.empty());
    EXPECT_NEAR(every.best.front().seconds_per_image() / best, 1, 1e-9);
    EXPECT_NEAR(every.gap(), 0, 1e-9);
    EXPECT_LE(every.best.front().most_memory(), question.memory);
    EXPECT_LE(fronts.lower_bound, brute.best_simple() * (1 + 1e-9)) << "a bound is above a plan";
    if (fronts.best.empty()) {  // memory that only a few plans need so little of
      EXPECT_TRUE(std::isinf(best_uniform));
      ++missed;
      continue;
    }
    EXPECT_GE(fronts.best.front().seconds_per_image(), best * (1 - 1e-9));
    EXPECT_LE(fronts.best.front().seconds_per_image(), best_uniform * (1 + 1e-9));
    fronts_gap += fronts.best.front().seconds_per_image() / best - 1;
    bound_gap += fronts.gap();
    most_bound_gap = std::max(most_bound_gap, fronts.gap());
  }
  EXPECT_LE(missed, 1 + machines / 50);
  const auto count = static_cast<double>(machines - nothing_fits - missed);
  std::cout << machines << " machines (" << nothing_fits << " fit nothing): " << tried << " plans tried, "
            << simulated << " simulated by the search; fronts alone: nothing on " << missed << ", "
            << 100 * fronts_gap / count << " % above the best on average, their gap to the bound "
            << 100 * bound_gap / count << " % on average, " << 100 * most_bound_gap << " % at most\n";
}

RandomMachine small_machine() { return RandomMachines(7).next(2, 2); }

TEST(Search, WithoutMessagesBetweenStagesThereAreNoPipelines) {
  RandomMachine machine = small_machine();
  machine.question.memory = 1e18;
  std::erase_if(machine.profile.links, [](const LinkTimes& link) { return link.operation == "send"; });
  const SearchResult found = search(machine.profile, machine.question);
  ASSERT_FALSE(found.best.empty());
  for (const FoundPlan& plan : found.best) EXPECT_EQ(plan.question.plan.stages, 1);
  EXPECT_TRUE(found.restrictions.back().starts_with("no pipelines: ")) << found.restrictions.back();
  std::erase_if(machine.profile.links, [](const LinkTimes& link) { return link.operation == "exchange"; });
  for (const FoundPlan& plan : search(machine.profile, machine.question).best)
    for (const plan::UnitPlan& unit : plan.question.plan.units) EXPECT_FALSE(unit.is_cut());
}

TEST(Search, TriesPlansUntilOneFitsWhateverTheTime) {
  RandomMachine machine = small_machine();
  machine.question.memory = 1e18;
  machine.question.seconds = 0;
  const SearchResult found = search(machine.profile, machine.question);
  EXPECT_FALSE(found.best.empty());
  EXPECT_TRUE(found.timed_out);
  EXPECT_EQ(found.lower_bound, 0) << "nothing is known of plans that there was no time for";
  machine.question.seconds = 60;
  machine.question.memory = 0;
  const SearchResult nothing = search(machine.profile, machine.question);
  EXPECT_LT(found.bounded, nothing.bounded);
  ASSERT_TRUE(nothing.smallest);
  machine.question.seconds = 0;
  machine.question.memory = nothing.smallest->most_memory();
  EXPECT_FALSE(search(machine.profile, machine.question).best.empty());
}

/// 7 images on 4 ranks, and 3 on 4: as long as the rank with most of them takes.
TEST(Search, ABatchNeedNotBeAMultipleOfTheRanks) {
  RandomMachine machine = small_machine();
  machine.question.ranks = 4;
  machine.question.memory = 1e18;
  for (const auto& [batch, most] : std::vector<std::pair<int64_t, int64_t>>{{7, 2}, {3, 1}}) {
    machine.question.batches = {batch};
    for (const FoundPlan& plan : search(machine.profile, machine.question).best) {
      EXPECT_EQ(plan.batch, batch);
      if (plan.question.plan.stages == 1) {
        EXPECT_EQ(plan.question.batch * plan.question.accumulation, most);
      }
    }
    EXPECT_FALSE(search(machine.profile, machine.question).best.empty());
  }
}

/// A host of the machine has more ranks than the run, or the run has no whole hosts: plans of one stage lie
/// there as well.
TEST(Search, RanksNeedNotFillHosts) {
  RandomMachine machine = small_machine();
  machine.question.memory = 1e18;
  for (const auto& [ranks, host] : std::vector<std::pair<int64_t, int64_t>>{{3, 4}, {5, 8}, {6, 4}, {7, 2}}) {
    SCOPED_TRACE(testing::Message() << ranks << " ranks, hosts of " << host);
    machine.question.ranks = ranks;
    machine.question.ranks_of_host = host;
    machine.question.batches = {4 * ranks};
    const SearchResult found = search(machine.profile, machine.question);
    ASSERT_FALSE(found.best.empty());
    for (const Level level : {Level::kReplicate, Level::kZero1, Level::kZero2, Level::kZero3}) {
      StepQuestion question;
      question.plan = plan::uniform_plan(machine.profile.model, ranks, level, false, 1);
      question.batch = 4;
      question.ranks_of_host = host;
      EXPECT_LE(found.best.front().time.seconds,
                predict_step(machine.profile, question).seconds * (1 + 1e-9));
    }
  }
}

/// GPipe and 1F1B with one micro-batch are one plan.
TEST(Search, OrdersOfPassesThatAreTheSameAreTriedOnce) {
  RandomMachine machine = small_machine();
  machine.question.memory = 1e18;
  machine.question.micro_batches = 1;
  machine.question.allowed = [](int64_t stages, const plan::UnitPlan&) { return stages == 2; };
  const SearchResult found = search(machine.profile, machine.question);
  ASSERT_GT(found.best.size(), 1u);
  std::set<std::string> plans;
  for (FoundPlan plan : found.best) {
    plan.question.plan.schedule = plan::Schedule::k1F1B;
    plan.question.plan.ahead = 0;
    EXPECT_TRUE(plans.insert(plan::to_json(plan.question.plan)).second);
  }
}

TEST(Search, RestrictionsAreThoseOfTheQuestion) {
  RandomMachine machine = small_machine();
  machine.question.memory = 1e18;
  const auto says = [&](const std::string& part) {
    const SearchResult found = search(machine.profile, machine.question);
    return std::ranges::any_of(found.restrictions,
                               [&](const std::string& one) { return one.find(part) != one.npos; });
  };
  EXPECT_TRUE(says("and 0 or 1 in others"));
  EXPECT_FALSE(says("all blocks have one layout"));
  machine.question.layer_by_layer = false;
  EXPECT_FALSE(says("and 0 or 1 in others"));
  EXPECT_TRUE(says("all blocks have one layout"));
}

TEST(Search, ABatchThatContradictsTheImagesOfARankIsRefused) {
  RandomMachine machine = small_machine();
  machine.question.batches = {7};
  machine.question.ranks = 4;
  machine.question.images_of_rank = 2;
  machine.question.equal_ranks = true;
  EXPECT_NE(error_text([&] {
              search(machine.profile, machine.question);
            }).find("no number of stages and micro-batches fits 4 ranks and a batch of 7 images"),
            std::string::npos);
}

}  // namespace
}  // namespace tessera::planner
