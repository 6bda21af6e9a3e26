// SPDX-License-Identifier: Apache-2.0
// The search against plans that are all tried, one after another: built here, without the search's bounds.
#include "tessera/planner/search.h"

#include <gtest/gtest.h>

#include <cmath>
#include <iostream>
#include <limits>
#include <random>
#include <set>
#include <span>

#include "small_vit.h"
#include "tessera/plan/schedule.h"
#include "tessera/plan/spans.h"
#include "tests/error_text.h"

namespace tessera::planner {
namespace {

using plan::Level;
using plan::Recompute;

/// A machine with times that have nothing to do with each other.
struct RandomMachine {
  Profile profile;
  SearchQuestion question;
};

class RandomMachines {
 public:
  explicit RandomMachines(uint64_t seed) : random_(seed) {}

  double between(double low, double high) { return std::uniform_real_distribution<>(low, high)(random_); }
  int64_t one_of(std::initializer_list<int64_t> values) {
    return *(values.begin() + std::uniform_int_distribution<size_t>(0, values.size() - 1)(random_));
  }

  RandomMachine next(int64_t depth, int64_t ranks) {
    RandomMachine machine;
    Profile& profile = machine.profile;
    profile.model = random_vit(depth);
    profile.provenance.ranks_of_host = one_of({2, 4});
    for (const char* kind : {"stem", "blocks.0", "head"}) {
      for (const int64_t tensor : {1, 2}) {
        const double image = between(0.5, 2), fixed = between(0, 1), again = between(0.2, 1);
        for (const int64_t batch : {1, 4}) {
          const double forward = fixed + image * static_cast<double>(batch), backward = 2 * forward;
          for (const Recompute recompute : {Recompute::kNone, Recompute::kAll}) {
            const double extra = recompute == Recompute::kNone ? 0 : again * forward;
            profile.units.push_back({kind, tensor, batch, recompute, forward, backward + extra, 0});
          }
        }
      }
    }
    const double speed = std::pow(10, between(3.5, 6));
    for (const char* operation : {"all_gather", "reduce_scatter", "exchange", "send"}) {
      for (const char* kind : {"adjacent", "strided", "hosts"}) {
        const double latency = between(0, 0.1), bandwidth = speed * between(0.5, 2);
        profile.links.push_back(
            {operation, kind, own_time_ ? "shared memory" : "TCP", 2, latency, bandwidth, 0, {}});
        if (operation != std::string("exchange") || own_time_ || kind == std::string("strided")) continue;
        const auto seconds = [&](double bytes) { return latency + bytes / bandwidth; };
        profile.links.back().in_pieces = {
            {2, {{1000, seconds(1000), seconds(0)}, {100'000, seconds(100'000), 0.3 * seconds(100'000)}}}};
      }
    }
    profile.compute_slowdown = between(1, 1.6);
    profile.link_slowdown = between(1, 1.6);
    profile.optimizer_seconds = between(0, 1e-5);
    profile.widen_seconds = between(0, 1e-5);
    profile.accumulate_seconds = between(0, 1e-5);
    profile.add_sum_seconds = between(0, 1e-5);
    profile.unit_lag = between(0, 0.1);
    profile.micro_batch_lag = between(0, profile.unit_lag);
    profile.step_seconds = between(0, 0.5);
    SearchQuestion& question = machine.question;
    question.ranks = ranks;
    question.batches = {one_of({4, 8}) * (ranks % 3 == 0 ? 3 : 1)};
    question.pieces = one_of({1, 2});
    own_time_ = !own_time_;
    return machine;
  }

 private:
  arch::VitConfig random_vit(int64_t depth) {
    arch::VitConfig config = vit(depth);
    config.width = one_of({32, 64, 128});
    config.mlp_width = config.width * one_of({1, 2, 4});
    config.patch_size = one_of({4, 8, 16});
    config.classes = one_of({10, 1000});
    return config;
  }

  std::mt19937_64 random_;
  bool own_time_ = false;
};

/// Layouts of a block for `ranks` ranks of a stage, on hosts of `host`: docs/planner.md, "The search".
std::vector<plan::UnitPlan> layouts_of(int64_t ranks, int64_t host) {
  std::vector<plan::UnitPlan> all;
  for (const int64_t tensor : {1, 2}) {
    if (ranks % tensor != 0) continue;
    for (const Level level : {Level::kReplicate, Level::kZero1, Level::kZero2, Level::kZero3}) {
      if (ranks == 1 && level != Level::kReplicate) continue;
      std::set<int64_t> groups = {0};
      const int64_t of_host = host / tensor, copies = ranks / tensor;
      if (level != Level::kReplicate && of_host > 1 && of_host < copies && copies % of_host == 0)
        groups.insert(of_host);
      for (const int64_t group : groups) {
        for (const Recompute recompute : {Recompute::kNone, Recompute::kAll}) {
          for (const bool adjacent : {true, false}) {
            if (!adjacent && (tensor == 1 || tensor == ranks || ranks > host || group > 0)) continue;
            for (const bool keeps : {true, false}) {
              if (keeps != (tensor > 1) && (tensor == 1 || recompute == Recompute::kAll)) continue;
              plan::UnitPlan unit;
              unit.level = level;
              unit.recompute = recompute;
              unit.shard = group;
              unit.layout = {tensor, adjacent};
              unit.keep_gathered = keeps;
              all.push_back(unit);
            }
          }
        }
      }
    }
  }
  return all;
}

/// Tries every plan of the space.
class BruteForce {
 public:
  BruteForce(const RandomMachine& machine, bool uniform_only)
      : profile_(machine.profile), question_(machine.question), uniform_only_(uniform_only) {}

  double run() {
    for (int64_t stages = 1; stages <= question_.ranks; ++stages) {
      if (question_.ranks % stages != 0) continue;
      const int64_t ranks = question_.ranks / stages;
      if (stages > units() || (stages > 1 && ranks % host() != 0 && host() % ranks != 0)) continue;
      for (int64_t micro_batches = 1; micro_batches * ranks <= batch(); ++micro_batches) {
        if (batch() % (micro_batches * ranks) != 0) continue;
        with_frame(stages, micro_batches);
      }
    }
    return best_;
  }
  int64_t tried() const { return tried_; }
  /// Of plans that is_simple() takes.
  double best_simple() const { return best_simple_; }
  double least_memory() const { return least_memory_; }
  double most_memory() const { return most_memory_; }

 private:
  int64_t units() const { return arch::unit_names(profile_.model).size(); }
  int64_t batch() const { return question_.batches[0]; }
  int64_t host() const { return std::min(profile_.provenance.ranks_of_host, question_.ranks); }

  void with_frame(int64_t stages, int64_t micro_batches) {
    plan::Plan plan = plan::uniform_plan(profile_.model, question_.ranks, Level::kReplicate, false, 1);
    plan.stages = stages;
    accumulation_ = micro_batches;
    images_ = batch() / (question_.ranks / stages) / micro_batches;
    if (stages == 1) {
      with_cut(plan);
      return;
    }
    plan.micro_batches = micro_batches;
    for (const auto schedule :
         {plan::Schedule::k1F1B, plan::Schedule::kGpipe, plan::Schedule::kInterleaved}) {
      plan.schedule = schedule;
      for (plan.ahead = 0; plan.ahead <= (schedule == plan::Schedule::k1F1B ? 1 : 0); ++plan.ahead) {
        plan.virtual_stages = 1;
        if (schedule != plan::Schedule::kInterleaved) {
          with_cuts(plan, {0});
          continue;
        }
        for (plan.virtual_stages = 2; plan.virtual_stages <= 4; plan.virtual_stages *= 2) {
          const int64_t parts = stages * plan.virtual_stages;
          if (micro_batches % stages != 0 || parts > units()) continue;
          plan.first_unit = plan::cut_by_cost(profile_.model, parts);
          with_layouts(plan, /*uniform=*/true);
        }
      }
    }
  }

  void with_cuts(plan::Plan plan, std::vector<int64_t> cut) {
    if (std::ssize(cut) == plan.stages) {
      plan.first_unit = cut;
      with_cut(plan);
      return;
    }
    for (int64_t next = cut.back() + 1; next < units(); ++next) {
      std::vector<int64_t> longer = cut;
      longer.push_back(next);
      with_cuts(plan, longer);
    }
  }

  void with_cut(const plan::Plan& plan) {
    const bool even = plan.stages == 1 || plan.first_unit == plan::cut_by_cost(profile_.model, plan.stages);
    if (even) with_layouts(plan, true);
    if (!uniform_only_) with_layouts(plan, false);
  }

  void with_layouts(plan::Plan plan, bool uniform) {
    std::vector<plan::UnitPlan> blocks, ends;
    for (const plan::UnitPlan& unit : layouts_of(plan.stage_ranks(), host())) {
      if (!question_.allowed || question_.allowed(plan.stages, unit)) blocks.push_back(unit);
      if (!unit.is_cut() && !unit.recomputes()) ends.push_back(unit);
    }
    if (uniform) {
      for (const plan::UnitPlan& block : blocks) {
        plan::UnitPlan end = block;
        end.shard *= block.layout.tensor;
        end.layout = {};
        end.recompute = Recompute::kNone;
        end.keep_gathered = false;
        for (int64_t i = 0; i < units(); ++i) set(plan, i, i == 0 || i + 1 == units() ? end : block);
        for (plan.prefetch = 0; plan.prefetch <= 2; ++plan.prefetch) try_plan(plan);
      }
      return;
    }
    std::vector<size_t> at(static_cast<size_t>(units()), 0);
    for (;;) {
      for (int64_t i = 0; i < units(); ++i) {
        const auto& of = i == 0 || i + 1 == units() ? ends : blocks;
        if (of.empty()) return;
        set(plan, i, of[at[static_cast<size_t>(i)]]);
      }
      for (plan.prefetch = 0; plan.prefetch <= 1; ++plan.prefetch) try_plan(plan);
      size_t i = 0;
      for (; i < at.size(); ++i) {
        if (++at[i] < (i == 0 || i + 1 == at.size() ? ends : blocks).size()) break;
        at[i] = 0;
      }
      if (i == at.size()) return;
    }
  }

  static void set(plan::Plan& plan, int64_t index, plan::UnitPlan unit) {
    unit.name = plan.units[static_cast<size_t>(index)].name;
    plan.units[static_cast<size_t>(index)] = unit;
  }

  void try_plan(const plan::Plan& plan) {
    ++tried_;
    StepQuestion question;
    question.plan = plan;
    question.inputs = question_.inputs;
    question.inputs.accumulates = accumulation_ > 1;
    question.batch = images_;
    question.accumulation = accumulation_;
    question.pieces = question_.pieces;
    const double memory = plan::predict_memory(profile_.model, plan, question.inputs, question.batch).total();
    least_memory_ = std::min(least_memory_, memory);
    most_memory_ = std::max(most_memory_, memory);
    if (memory > question_.memory) return;
    const double seconds = predict_step(profile_, question).seconds / static_cast<double>(batch());
    best_ = std::min(best_, seconds);
    if (is_simple(plan)) best_simple_ = std::min(best_simple_, seconds);
  }

  /// Is the plan certainly of the space that is searched where there are many plans? Blocks of a stage have
  /// one tensor layout and one group; in a pipeline, where stem and head have what the block beside them has,
  /// they are alike.
  bool is_simple(const plan::Plan& plan) const {
    for (int64_t stage = 0; stage < plan.stages * plan.virtual_stages; ++stage) {
      const auto [begin, end] = plan::units_of_virtual_stage(plan, stage);
      const plan::UnitPlan* first = nullptr;
      for (size_t i = std::max<size_t>(begin, 1); i < std::min(end, plan.units.size() - 1); ++i) {
        plan::UnitPlan unit = plan.units[i];
        if (first == nullptr) first = &plan.units[i];
        unit.name = first->name;
        if (unit.layout != first->layout || unit.shard != first->shard) return false;
        if (plan.stages > 1 && unit != *first) return false;
      }
      if (plan.stages == 1) continue;
      for (const size_t end_unit : {size_t{0}, plan.units.size() - 1}) {
        if (end_unit < begin || end_unit >= end) continue;
        if (first == nullptr || plan.units[end_unit].level != first->level ||
            plan.units[end_unit].shard != first->shard * first->layout.tensor)
          return false;
      }
    }
    return true;
  }

  const Profile& profile_;
  const SearchQuestion& question_;
  bool uniform_only_;
  int64_t accumulation_ = 1, images_ = 1, tried_ = 0;
  double best_ = std::numeric_limits<double>::infinity(), best_simple_ = best_;
  double least_memory_ = std::numeric_limits<double>::infinity(), most_memory_ = 0;
};

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
