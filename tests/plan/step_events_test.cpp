// SPDX-License-Identifier: Apache-2.0
// The collectives of a step against lists written by hand, and the checker of any lists against threads that
// run them.
#include "tessera/plan/step_events.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <random>
#include <thread>

#include "../error_text.h"
#include "tessera/base/text.h"

namespace tessera::plan {
namespace {

using StepLists = std::vector<std::vector<StepEvent>>;

StepLists lists_of(const Plan& plan, const StepLayers& layers) {
  StepLists lists;
  for (int64_t rank = 0; rank < plan.world; ++rank) lists.push_back(step_events(plan, layers, rank));
  return lists;
}

/// "+all_gather stem", "-all_gather stem": starts, and waits.
std::vector<std::string> texts_of(const std::vector<StepEvent>& list) {
  std::vector<std::string> texts;
  for (const StepEvent& event : list)
    texts.push_back(concat(event.starts() ? "+" : "-", to_string(event.of.kind), " ", event.of.what));
  return texts;
}

Plan plan_with(int64_t world, const std::vector<UnitPlan>& units) {
  Plan plan;
  plan.world = world;
  plan.units = units;
  return plan;
}

TEST(StepEvents, OfZero3OnTwoRanks) {
  const Plan plan = plan_with(2, {{.name = "stem"}, {.name = "head", .level = Level::kZero1}});
  StepLayers layers = any_layers(plan);
  layers.micro_batches = 2;
  const std::vector<std::string> expected = {
      // F0: the head is gathered ahead, and stays.
      "+all_gather stem", "-all_gather stem", "+all_gather head", "-all_gather head",
      // B0: the head adds up its gradients. The stem is gathered again, used and reduced.
      "+all_gather stem", "-all_gather stem", "+reduce_scatter stem", "-reduce_scatter stem",
      // F1, B1
      "+all_gather stem", "-all_gather stem", "+all_gather stem", "+reduce_scatter head", "-all_gather stem",
      "-reduce_scatter head", "+reduce_scatter stem", "-reduce_scatter stem", "+all_reduce step",
      "-all_reduce step"};
  EXPECT_EQ(texts_of(step_events(plan, layers, 1)), expected);
  EXPECT_NO_THROW(check_events(lists_of(plan, layers)));
}

// Sums over replicas begin once those over shards have ended, with the next unit's.
TEST(StepEvents, OfReplicatedShards) {
  const Plan plan = plan_with(4, {{.name = "stem", .level = Level::kZero2, .shard = 2},
                                  {.name = "head", .level = Level::kReplicate}});
  const std::vector<std::string> expected = {
      "+all_gather stem",     "-all_gather stem",     "+reduce_scatter head", "-reduce_scatter head",
      "+all_gather head",     "+reduce_scatter stem", "-reduce_scatter stem", "+reduce_scatter stem",
      "-reduce_scatter stem", "+all_gather stem",     "-all_gather stem",     "-all_gather head",
      "+all_reduce step",     "-all_reduce step"};
  const auto events = step_events(plan, any_layers(plan), 3);
  EXPECT_EQ(texts_of(events), expected);
  EXPECT_EQ(to_string(events[0].of, 3), "all_gather stem over ranks 2,3");
  EXPECT_EQ(to_string(events[7].of, 3), "reduce_scatter stem over ranks 1,3 (stride 2)");
}

TEST(StepEvents, OfCutLayers) {
  Plan plan = plan_with(2, {{.name = "stem", .level = Level::kReplicate},
                            {.name = "b", .level = Level::kZero3, .layout = {.tensor = 2}}});
  const auto backward = [&](Recompute recompute, bool keeps) {
    plan.units[1].recompute = recompute;
    plan.units[1].keep_gathered = keeps;
    std::vector<std::string> texts;
    for (const StepEvent& event : step_events(plan, any_layers(plan), 0))
      if (event.starts() && event.of.span.activations && event.pass.direction == Direction::kBackward)
        texts.push_back(concat(to_string(event.of.kind), " ", event.of.what));
    return join(texts, "; ");
  };
  const std::string plain =
      "gather_rows b.1, backward; sum_rows b.1, backward; gather_rows b.0, backward; sum_rows b.0, backward";
  EXPECT_EQ(backward(Recompute::kNone, true), plain);
  EXPECT_EQ(backward(Recompute::kNone, false),
            "gather_rows b.1, backward; gather_rows b.1, again; sum_rows b.1, backward; gather_rows b.0, "
            "backward; gather_rows b.0, again; sum_rows b.0, backward");
  EXPECT_EQ(backward(Recompute::kAll, true),
            "gather_rows b.0; sum_rows b.0; gather_rows b.1; sum_rows b.1; " + plain);
  EXPECT_EQ(backward(Recompute::kKeepSums, true), "gather_rows b.0; gather_rows b.1; " + plain);
}

TEST(StepEvents, OfStages) {
  Plan plan = plan_with(2, {{.name = "stem"}, {.name = "head"}});
  plan.stages = 2;
  plan.micro_batches = 2;
  plan.first_unit = {0, 1};
  const std::vector<std::string> expected = {"+receive the length of notes",
                                             "-receive the length of notes",
                                             "+receive note of micro-batch 0",
                                             "+receive note of micro-batch 1",
                                             "-receive note of micro-batch 0",
                                             "-receive note of micro-batch 1",
                                             "+receive the activations' shape",
                                             "-receive the activations' shape",
                                             "+receive activations of micro-batch 0",
                                             "-receive activations of micro-batch 0",
                                             "+receive activations of micro-batch 1",
                                             "+send gradients of micro-batch 0",
                                             "-receive activations of micro-batch 1",
                                             "+send gradients of micro-batch 1",
                                             "-send gradients of micro-batch 0",
                                             "-send gradients of micro-batch 1",
                                             "+all_reduce step",
                                             "-all_reduce step"};
  EXPECT_EQ(texts_of(step_events(plan, any_layers(plan), 1)), expected);
}

/// Of any units over any groups, schedules and micro-batches.
class RandomPlans {
 public:
  explicit RandomPlans(uint32_t seed) : random_(seed) {}

  Plan plan() {
    Plan plan;
    plan.stages = one_of({1, 1, 2, 3});
    plan.world = plan.stages * one_of({1, 2, 4});
    plan.prefetch = one_of({0, 1, 2});
    if (plan.stages > 1) set_schedule(plan);
    const int64_t parts = plan.stages * plan.virtual_stages, units = parts + one_of({0, 1, 3});
    for (int64_t i = 0; i < units; ++i) plan.units.push_back(unit(plan, i));
    plan.first_unit.clear();
    for (int64_t part = 0; part < parts; ++part) plan.first_unit.push_back(part * units / parts);
    return plan;
  }

  StepLayers layers(const Plan& plan) {
    StepLayers layers = any_layers(plan);
    layers.last_sum_again = one_of({0, 1}) == 1;
    layers.frozen_units =
        std::min<int64_t>(one_of({0, 0, 1, 2}), static_cast<int64_t>(plan.units.size()) - 1);
    layers.micro_batches = one_of({1, 2, 3});
    layers.pieces = one_of({1, 4});
    return layers;
  }

  int64_t one_of(const std::vector<int64_t>& values) { return values[random_() % values.size()]; }
  size_t below(size_t count) { return random_() % count; }

 private:
  void set_schedule(Plan& plan) {
    plan.schedule = static_cast<Schedule>(one_of({0, 1, 2}));
    const bool interleaved = plan.schedule == Schedule::kInterleaved;
    plan.virtual_stages = interleaved ? 2 : 1;
    plan.micro_batches = interleaved ? plan.stages * one_of({1, 2}) : one_of({1, 2, 3, 5});
    plan.ahead = plan.schedule == Schedule::k1F1B ? one_of({0, 1}) : 0;
  }

  int64_t divisor_of(int64_t value) {
    int64_t divisor = one_of({1, 2, 4});
    while (value % divisor != 0) divisor /= 2;
    return divisor;
  }

  UnitPlan unit(const Plan& plan, int64_t index) {
    UnitPlan unit{.name = concat("unit ", index), .level = static_cast<Level>(one_of({0, 1, 2, 3}))};
    if (index > 0) unit.layout = {divisor_of(plan.stage_ranks()), one_of({0, 1}) == 1};
    unit.keep_gathered = unit.is_cut() && one_of({0, 1}) == 1;
    if (index > 0)
      unit.recompute = static_cast<Recompute>(
          one_of(unit.is_cut() ? std::vector<int64_t>{0, 1, 2} : std::vector<int64_t>{0, 1}));
    if (unit.level != Level::kReplicate) {
      const int64_t ranks = plan.stage_ranks() / unit.layout.tensor;
      unit.shard = one_of({0, 1}) == 1 ? 0 : divisor_of(ranks);
    }
    return unit;
  }

  std::mt19937 random_;
};

// Also where a send waits for room, except with several parts on a rank: there a part may have to send before
// another one of the same rank asks for what was sent to it.
TEST(CheckEvents, AcceptsTheStepOfEveryPlan) {
  RandomPlans random(1);
  for (int i = 0; i < 1000; ++i) {
    const Plan plan = random.plan();
    const StepLists lists = lists_of(plan, random.layers(plan));
    for (int64_t room = plan.virtual_stages == 1 ? 2 : 0; room >= 0; --room)
      EXPECT_NO_THROW(check_events(lists, room)) << to_json(plan);
  }
}

/// The list with event `from` moved to place `to`; nothing where a wait would come before its start.
std::optional<std::vector<StepEvent>> with_moved(const std::vector<StepEvent>& list, size_t from, size_t to) {
  std::vector<size_t> order(list.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  order.erase(order.begin() + static_cast<ptrdiff_t>(from));
  order.insert(order.begin() + static_cast<ptrdiff_t>(to), from);
  std::vector<size_t> place(list.size());
  for (size_t i = 0; i < order.size(); ++i) place[order[i]] = i;
  std::vector<StepEvent> moved;
  for (size_t i = 0; i < order.size(); ++i) {
    moved.push_back(list[order[i]]);
    int64_t& waits_for = moved.back().waits_for;
    if (waits_for == StepEvent::kStarts) continue;
    waits_for = static_cast<int64_t>(place[static_cast<size_t>(waits_for)]);
    if (waits_for > static_cast<int64_t>(i)) return std::nullopt;
  }
  return moved;
}

std::string fault_in(const StepLists& lists, int64_t room = 0) {
  const std::string text = error_text([&] { check_events(lists, room); });
  const std::string start = "[plan.check_events] the step does not work: ";
  EXPECT_TRUE(text.starts_with(start)) << text;
  return text.substr(std::min(text.size(), start.size()));
}

TEST(CheckEvents, NamesBothSides) {
  const Plan plan = plan_with(2, {{.name = "stem"}, {.name = "head"}});
  StepLists lists = lists_of(plan, any_layers(plan));
  const StepLists right = lists;
  lists[1] = *with_moved(right[1], 2, 0);  // the head is gathered first
  EXPECT_EQ(fault_in(lists),
            "rank 0 starts all_gather stem over ranks 0,1 in F0, where rank 1 starts all_gather head over "
            "ranks 0,1 in F0");
  lists[1] = right[1];
  lists[1].resize(1);
  EXPECT_EQ(fault_in(lists),
            "rank 0 starts reduce_scatter head over ranks 0,1 in B0, where rank 1 starts nothing more there");
  // Each waits for the other's message before it sends its own.
  Plan stages = plan;
  stages.stages = stages.micro_batches = 2;
  stages.first_unit = {0, 1};
  lists = lists_of(stages, any_layers(stages));
  const auto at = [&](size_t rank, const std::string& text) {
    const std::vector<std::string> texts = texts_of(lists[rank]);
    return static_cast<size_t>(std::ranges::find(texts, text) - texts.begin());
  };
  lists[0] = *with_moved(lists[0], at(0, "+send activations of micro-batch 1"),
                         at(0, "-receive gradients of micro-batch 0"));
  lists[1] = *with_moved(lists[1], at(1, "-receive activations of micro-batch 1"),
                         at(1, "+send gradients of micro-batch 0"));
  EXPECT_EQ(
      fault_in(lists),
      "ranks wait for each other: rank 0 in B0 for receive gradients of micro-batch 0 from rank 1, rank "
      "1 in F1 for receive activations of micro-batch 1 from rank 0");
}

/// Threads that run the lists of their ranks: a wait blocks until all members of the group, or the other end
/// of the message, have started, and a send until there is room. Written apart from the checker.
class ThreadsOfLists {
 public:
  ThreadsOfLists(const StepLists& lists, size_t room)
      : lists_(lists), room_(room), seen_(lists.size(), kRuns) {}

  /// Do all come to their end, having met in the same collectives?
  bool work() {
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < lists_.size(); ++rank) threads.emplace_back([this, rank] { run(rank); });
    for (std::thread& thread : threads) thread.join();
    for (const auto& [key, of_ranks] : started_) {
      for (const int64_t rank : members_.at(key))
        if (of_ranks.count(rank) == 0 || of_ranks.at(rank) != of_ranks.begin()->second) return false;
    }
    return !stuck_;
  }

 private:
  static std::string key_of(const Collective& of, int64_t rank) {
    if (of.is_message()) return concat("link ", of.link.boundary, of.link.forward, of.link.from);
    const bool exchange = of.kind == CollectiveKind::kReduceScatter || of.kind == CollectiveKind::kSumRows;
    return concat(ranks_text(of.span, rank), of.span.activations, exchange);
  }

  void run(size_t number) {
    const auto rank = static_cast<int64_t>(number);
    std::unique_lock lock(mutex_);
    std::vector<size_t> places;  // in its channel, of each event that starts something
    for (const StepEvent& event : lists_[number]) {
      const std::string key = key_of(event.of, rank);
      members_[key] = event.of.is_message() ? std::vector<int64_t>{event.of.link.from, event.of.link.to}
                                            : ranks_of(event.of.span, rank);
      const auto counts_above = [&](size_t place) {
        return std::ranges::all_of(members_[key],
                                   [&](int64_t one) { return started_[key][one].size() > place; });
      };
      if (!event.starts()) {
        places.push_back(places[static_cast<size_t>(event.waits_for)]);
        if (!block(lock, number, [&] { return counts_above(places.back()); })) return;
        continue;
      }
      const auto has_room = [&] {
        return started_[key][rank].size() < started_[key][event.of.link.to].size() + room_;
      };
      if (room_ > 0 && event.of.kind == CollectiveKind::kSend && !block(lock, number, has_room)) return;
      places.push_back(started_[key][rank].size());
      started_[key][rank].push_back(
          concat(event.of.is_message() ? "" : to_string(event.of.kind), event.of.what));
      ++changes_;
      changed_.notify_all();
    }
    seen_[number] = kDone;
    note_stuck();
  }

  /// false: nobody can go on any more.
  template <typename Ready>
  bool block(std::unique_lock<std::mutex>& lock, size_t rank, const Ready& ready) {
    while (!ready()) {
      seen_[rank] = changes_;
      note_stuck();
      if (stuck_) return false;
      changed_.wait(lock, [&] { return stuck_ || seen_[rank] != changes_; });
      if (stuck_) return false;
    }
    seen_[rank] = kRuns;
    return true;
  }

  /// All that have not ended have seen the last change and wait all the same.
  void note_stuck() {
    const bool some_wait = std::ranges::any_of(seen_, [](int64_t seen) { return seen != kDone; });
    const bool none_runs =
        std::ranges::all_of(seen_, [&](int64_t seen) { return seen == kDone || seen == changes_; });
    if (!some_wait || !none_runs) return;
    stuck_ = true;
    changed_.notify_all();
  }

  static constexpr int64_t kRuns = -1, kDone = -2;

  const StepLists& lists_;
  const size_t room_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::map<int64_t, std::vector<std::string>>> started_;  // by channel and rank
  std::map<std::string, std::vector<int64_t>> members_;
  std::vector<int64_t> seen_;  // by rank: the change that it saw before it waits
  int64_t changes_ = 0;
  bool stuck_ = false;
};

// Lists of random plans, most of them with some events elsewhere than they should be, on threads whose
// messages have room for any number, or one or two.
TEST(CheckEvents, JudgesRandomListsAsThreadsDo) {
  RandomPlans random(2);
  int64_t works = 0, locks = 0, differ = 0;
  for (int i = 0; i < 1000; ++i) {
    const Plan plan = random.plan();
    StepLists lists = lists_of(plan, random.layers(plan));
    for (int64_t moves = random.one_of({0, 2, 4, 8}); moves-- > 0;) {
      std::vector<StepEvent>& list = lists[random.below(lists.size())];
      if (list.empty()) continue;  // of one rank
      const size_t from = random.below(list.size());
      const size_t to = std::min(list.size() - 1, from - std::min<size_t>(from, 8) + random.below(17));
      if (const auto moved = with_moved(list, from, to)) list = *moved;
    }
    const int64_t room = random.one_of({0, 1, 2});
    if (ThreadsOfLists(lists, static_cast<size_t>(room)).work()) {
      ++works;
      EXPECT_NO_THROW(check_events(lists, room)) << to_json(plan);
      continue;
    }
    const bool lock = fault_in(lists, room).starts_with("ranks wait for each other: rank ");
    ++(lock ? locks : differ);
  }
  EXPECT_GT(works, 200);
  EXPECT_GT(locks, 20);
  EXPECT_GT(differ, 100);
}

}  // namespace
}  // namespace tessera::plan
