// SPDX-License-Identifier: Apache-2.0
// Schedules against published formulas, and the checker against lists that lock.
#include "tessera/plan/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "../error_text.h"
#include "tessera/base/text.h"

namespace tessera::plan {
namespace {

using enum Direction;
using Lists = std::vector<std::vector<Action>>;

PassCosts costs_of(const ScheduleShape& shape, double forward, double backward, double message = 0) {
  const auto stages = static_cast<size_t>(shape.stages * shape.parts);
  return {std::vector<double>(stages, forward), std::vector<double>(stages, backward), message};
}

Timing timing_of(const ScheduleShape& shape, const PassCosts& costs) {
  return simulate(shape, schedules_of(shape), costs);
}

std::string text_of(const std::vector<Action>& list, int64_t parts = 1) {
  std::vector<std::string> words;
  for (const Action& action : list) words.push_back(to_string(action, parts));
  return join(words, " ");
}

TEST(Schedule, ListsAreThePublishedOnes) {
  EXPECT_EQ(text_of(schedule_of({Schedule::kGpipe, 2, 1, 3}, 0)), "F0 F1 F2 B0 B1 B2");
  EXPECT_EQ(text_of(schedule_of({Schedule::kGpipe, 2, 1, 3}, 1)), "F0 F1 F2 B0 B1 B2");
  // PipeDream-Flush, arXiv 2006.09503, figure 2, and Megatron-LM's of arXiv 2104.04473, figure 4.
  EXPECT_EQ(text_of(schedule_of({Schedule::k1F1B, 4, 1, 8}, 0)),
            "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7");
  EXPECT_EQ(text_of(schedule_of({Schedule::k1F1B, 4, 1, 8}, 3)),
            "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7");
  EXPECT_EQ(text_of(schedule_of({Schedule::k1F1B, 4, 1, 8, 1}, 2)),
            "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7");
  EXPECT_EQ(text_of(schedule_of({Schedule::kInterleaved, 2, 2, 4}, 0), 2),
            "F0.0 F1.0 F0.1 F1.1 F2.0 B0.1 F3.0 B1.1 F2.1 B0.0 F3.1 B1.0 B2.1 B3.1 B2.0 B3.0");
  EXPECT_EQ(text_of(schedule_of({Schedule::k1F1B, 4, 1, 2}, 0)), "F0 F1 B0 B1") << "fewer than stages";
}

/// With passes of 1 forward and 2 backward.
TEST(Action, IsReadFromItsText) {
  for (const Action& action : {Action{kForward, 0, 0}, Action{kBackward, 12, 0}, Action{kForward, 3, 2}}) {
    EXPECT_EQ(action_from_string(to_string(action, 3)), action);
  }
  EXPECT_EQ(action_from_string("B12"), (Action{kBackward, 12, 0}));
  for (const char* text :
       {"", "F", "B.", "F1.", "F.1", "G1", "F-1", "F1.-1", "f1", "F1 ", "F99999999999999999999"})
    EXPECT_FALSE(action_from_string(text)) << text;
}

TEST(Schedule, TakesTheTimeOfTheFormulas) {
  for (const int64_t p : {2, 3, 4, 8}) {
    for (const int64_t m : {1, 2, 3, 4, 5, 8, 16, 32}) {
      SCOPED_TRACE(concat(p, " stages, ", m, " micro-batches"));
      const double ideal = static_cast<double>(m + p - 1) * 3;
      for (const Schedule schedule : {Schedule::kGpipe, Schedule::k1F1B}) {
        const ScheduleShape shape{schedule, p, 1, m};
        EXPECT_DOUBLE_EQ(timing_of(shape, costs_of(shape, 1, 2)).makespan, ideal);
      }
      for (const int64_t v : {2, 4}) {
        if (m % p != 0) continue;
        const ScheduleShape shape{Schedule::kInterleaved, p, v, m};
        const double of_part = 1.0 / static_cast<double>(v);
        EXPECT_NEAR(timing_of(shape, costs_of(shape, of_part, 2 * of_part)).makespan,
                    static_cast<double>(m) * 3 + static_cast<double>(p - 1) * 3 * of_part, 1e-9);
      }
    }
  }
}

TEST(Schedule, HoldsSoManyMicroBatches) {
  const auto in_flight = [](const ScheduleShape& shape) {
    return timing_of(shape, costs_of(shape, 1, 2)).in_flight;
  };
  using Counts = std::vector<int64_t>;
  EXPECT_EQ(in_flight({Schedule::kGpipe, 4, 1, 8}), (Counts{8, 8, 8, 8}));
  EXPECT_EQ(in_flight({Schedule::k1F1B, 4, 1, 8}), (Counts{4, 3, 2, 1}));
  EXPECT_EQ(in_flight({Schedule::k1F1B, 4, 1, 64}), (Counts{4, 3, 2, 1})) << "flat in the micro-batches";
  EXPECT_EQ(in_flight({Schedule::k1F1B, 4, 1, 16, 1}), (Counts{5, 4, 3, 1}));
  EXPECT_EQ(in_flight({Schedule::k1F1B, 4, 1, 3}), (Counts{3, 3, 2, 1}));
  EXPECT_EQ(in_flight({Schedule::kInterleaved, 4, 2, 8}), (Counts{11, 9, 7, 5}));
}

// One forward more hides a message's time: figures of a simulation written apart from this one.
TEST(Schedule, OneForwardAheadHidesMessages) {
  const auto makespan = [](Schedule schedule, int64_t ahead, double message) {
    const ScheduleShape shape{schedule, 4, 1, 16, ahead};
    return timing_of(shape, costs_of(shape, 1, 2, message)).makespan;
  };
  EXPECT_NEAR(makespan(Schedule::kGpipe, 0, 0.1), 57.6, 1e-9);
  EXPECT_NEAR(makespan(Schedule::k1F1B, 0, 0.1), 59.8, 1e-9);
  EXPECT_NEAR(makespan(Schedule::k1F1B, 1, 0.1), 57.6, 1e-9);
  EXPECT_NEAR(makespan(Schedule::k1F1B, 1, 0.5), 66.0, 1e-9);
}

TEST(Schedule, ASlowStageDecides) {
  const ScheduleShape shape{Schedule::k1F1B, 4, 1, 8};
  PassCosts costs = costs_of(shape, 1, 2);
  costs.forward[3] *= 1.3;
  costs.backward[3] *= 1.3;
  EXPECT_NEAR(timing_of(shape, costs).makespan, 40.2, 1e-9);
}

TEST(CheckSchedule, AcceptsEveryScheduleAtAnyRoom) {
  for (const int64_t p : {1, 2, 3, 4, 8}) {
    for (int64_t m = 1; m <= 2 * p; ++m) {
      for (const int64_t room : {0, 1, 2}) {
        for (const ScheduleShape& shape :
             {ScheduleShape{Schedule::kGpipe, p, 1, m}, ScheduleShape{Schedule::k1F1B, p, 1, m},
              ScheduleShape{Schedule::k1F1B, p, 1, m, 1}, ScheduleShape{Schedule::kInterleaved, p, 2, m}}) {
          if (shape.parts > 1 && (p == 1 || m % p != 0)) continue;
          EXPECT_NO_THROW(check_schedule(shape, schedules_of(shape), shape.parts == 1 ? room : 0))
              << p << " stages, " << m << " micro-batches, room " << room;
        }
      }
    }
  }
  const Lists only_forward = {forward_schedule(1, 3), forward_schedule(1, 3)};
  EXPECT_NO_THROW(check_schedule({Schedule::k1F1B, 2, 1, 3}, only_forward));
}

/// Without the place in front.
std::string fault_of(const ScheduleShape& shape, const Lists& lists, int64_t room = 0) {
  const std::string text = error_text([&] { check_schedule(shape, lists, room); });
  const std::string start = "[plan.check_schedule] the schedule does not work: ";
  EXPECT_TRUE(text.starts_with(start)) << text;
  return text.substr(std::min(text.size(), start.size()));
}

TEST(CheckSchedule, NamesWhatIsWrong) {
  const ScheduleShape shape{Schedule::k1F1B, 2, 1, 2};
  const auto with = [&](size_t stage, const std::vector<Action>& list) {
    Lists lists = schedules_of(shape);
    lists[stage] = list;
    return lists;
  };
  const Action f0{kForward, 0}, f1{kForward, 1}, b0{kBackward, 0}, b1{kBackward, 1};
  EXPECT_EQ(fault_of(shape, {schedule_of(shape, 0)}), "there are 1 lists for 2 stages");
  EXPECT_EQ(fault_of(shape, with(1, {f0, b0, f1})), "stage 1: B1 is missing");
  EXPECT_EQ(fault_of(shape, with(1, {f0, b0, b1})), "stage 1: B1 comes before its forward pass");
  EXPECT_EQ(fault_of(shape, with(0, {f1, f0, b0, b1})), "stage 0: F1 comes where F0 is due");
  EXPECT_EQ(fault_of(shape, with(0, {f0, f0, b0, b1})), "stage 0: F0 comes where F1 is due");
  EXPECT_EQ(fault_of(shape, with(0, {f0, f1, {kForward, 2}, b0, b1})),
            "stage 0: F2 is no pass of 2 micro-batches and 1 parts");
  // The second stage needs the second forward before it gives back the first gradient, and the first wants
  // that before.
  EXPECT_EQ(fault_of(shape, {{f0, b0, f1, b1}, {f0, f1, b0, b1}}),
            "stages wait for each other: stage 0 at B0, stage 1 at F1");
}

/// Does running the lists in any order that the dependencies allow come to the end? Written apart from the
/// checker: a search over the graph of all passes.
bool comes_to_an_end(const Lists& lists) {
  const size_t stages = lists.size();
  std::vector<std::vector<bool>> done(stages);
  for (size_t s = 0; s < stages; ++s) done[s].resize(lists[s].size());
  const auto is_done = [&](size_t stage, Direction direction, int64_t micro_batch) {
    for (size_t i = 0; i < lists[stage].size(); ++i) {
      if (lists[stage][i].direction == direction && lists[stage][i].micro_batch == micro_batch)
        return static_cast<bool>(done[stage][i]);
    }
    return false;
  };
  size_t left = 0;
  for (const auto& list : lists) left += list.size();
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t s = 0; s < stages; ++s) {
      const auto next = std::ranges::find(done[s], false);
      if (next == done[s].end()) continue;
      const Action& action = lists[s][static_cast<size_t>(next - done[s].begin())];
      const bool ready = action.direction == kForward
                             ? s == 0 || is_done(s - 1, kForward, action.micro_batch)
                             : s + 1 == stages || is_done(s + 1, kBackward, action.micro_batch);
      if (!ready) continue;
      *next = true;
      moved = true;
      --left;
    }
  }
  return left == 0;
}

// Every list keeps the order of micro-batches and runs a forward before its backward; else it is random.
TEST(CheckSchedule, JudgesRandomListsAsASearchDoes) {
  std::mt19937 random(7);
  int64_t locks = 0, works = 0;
  for (int i = 0; i < 1000; ++i) {
    const ScheduleShape shape{Schedule::k1F1B, 2 + static_cast<int64_t>(random() % 3), 1,
                              1 + static_cast<int64_t>(random() % 6)};
    Lists lists;
    for (int64_t stage = 0; stage < shape.stages; ++stage) {
      std::vector<Action> list;
      int64_t forwards = 0, backwards = 0;
      while (backwards < shape.micro_batches) {
        const bool forward = forwards < shape.micro_batches && (forwards == backwards || random() % 2 == 0);
        list.push_back(forward ? Action{kForward, forwards++} : Action{kBackward, backwards++});
      }
      lists.push_back(list);
    }
    const bool ends = comes_to_an_end(lists);
    (ends ? works : locks) += 1;
    if (ends) {
      EXPECT_NO_THROW(check_schedule(shape, lists));
    } else {
      EXPECT_TRUE(fault_of(shape, lists).starts_with("stages wait for each other: stage "));
    }
  }
  EXPECT_GT(locks, 100);
  EXPECT_GT(works, 100);
}

// A sender that waits for room can lock where one that does not cannot.
TEST(CheckSchedule, RoomCanBeTooLittle) {
  const ScheduleShape shape{Schedule::k1F1B, 2, 1, 4};
  const Lists lists = {schedule_of({Schedule::kGpipe, 2, 1, 4}, 0), schedule_of(shape, 1)};
  EXPECT_NO_THROW(check_schedule(shape, lists, 0));
  EXPECT_NO_THROW(check_schedule(shape, lists, 2));
  EXPECT_EQ(fault_of(shape, lists, 1), "stages wait for each other: stage 0 at F3, stage 1 at B1");
}

}  // namespace
}  // namespace tessera::plan
