// SPDX-License-Identifier: Apache-2.0
// Predicted steps against closed forms. Times of units are set by the tests, so every expected number follows
// from them by hand.
#include "tessera/planner/step_time.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <functional>
#include <iostream>
#include <numeric>

#include "set_times.h"
#include "tessera/plan/schedule.h"
#include "tests/error_text.h"

namespace tessera::planner {
namespace {

TEST(StepTime, OneRankTakesTheSumOfItsPasses) {
  Profile profile = profile_of(3, {1, 2}, {10, 20}, {3, 4});
  profile.optimizer_seconds = 1e-6;
  profile.accumulate_seconds = 1e-7;
  profile.step_seconds = 0.5;
  const StepTime time = predict_step(profile, {.plan = plan_of(3, 1), .batch = 2, .accumulation = 4});
  const double values = kStem + 3 * kBlock + kHead;
  EXPECT_EQ(values, arch::parameter_count(vit(3)));
  EXPECT_NEAR(time.stages[0].parts.compute, 4 * (3 + 3 * 30 + 7), kNear);
  EXPECT_NEAR(time.stages[0].parts.optimizer, values * 1e-6, kNear);
  EXPECT_NEAR(time.stages[0].parts.accumulation, 3 * values * 1e-7, kNear);  // widening is 0 here
  EXPECT_EQ(time.stages[0].parts.rest, 0.5);
  EXPECT_NEAR(time.seconds, 400 + values * 1.3e-6 + 0.5, kNear);
  expect_parts_add_up(time);
}

/// A run of one rank replays its passes; several ranks do not.
TEST(StepTime, ReplayedPassesTakeTheirShare) {
  Profile profile = profile_of(3, {1, 2}, {10, 20}, {3, 4});
  set_links(profile, {});
  const auto compute = [&](int64_t world, int64_t batch) {
    return predict_step(profile, {.plan = plan_of(3, world), .batch = batch}).stages[0].parts.compute;
  };
  const double ends = 1 + 2 + 3 + 4, blocks = 3 * (10 + 20);
  EXPECT_NEAR(compute(1, 2), ends + blocks, kNear);
  for (UnitTimes& unit : profile.units) {
    if (unit.kind == "blocks.0" && unit.recompute == plan::Recompute::kNone)
      unit.replayed = unit.batch == 1 ? 0.5 : 0.9;
  }
  EXPECT_NEAR(compute(1, 1), ends + 0.5 * blocks, kNear);
  EXPECT_NEAR(compute(1, 2), ends + 0.9 * blocks, kNear);
  EXPECT_NEAR(compute(1, 8), ends + 0.9 * blocks, kNear) << "as with the largest batch";
  EXPECT_NEAR(compute(2, 1), ends + blocks, kNear);
}

/// Seconds for a value, of m micro-batches with the profile's 1e-6 for the first, 1e-5 for each later one and
/// 1e-4 for each later sum. zero1 holds whole gradients in fp32, zero2 and zero3 sums of half of them.
TEST(StepTime, GradientsAreHeldAsTheLevelDoes) {
  Profile profile = profile_of(2, {1, 1}, {1, 1}, {1, 1});
  set_links(profile, {});
  profile.widen_seconds = 1e-6;
  profile.accumulate_seconds = 1e-5;
  profile.add_sum_seconds = 1e-4;
  const double values = kStem + 2 * kBlock + kHead;
  const auto accumulation = [&](int64_t world, plan::Level level, int64_t micro_batches) {
    const StepTime time =
        predict_step(profile, {.plan = plan_of(2, world, level), .accumulation = micro_batches});
    expect_parts_add_up(time);
    return time.stages[0].parts.accumulation / values;
  };
  using plan::Level;
  EXPECT_EQ(accumulation(1, Level::kReplicate, 1), 0);  // the update reads them as they are made
  EXPECT_NEAR(accumulation(1, Level::kReplicate, 3), 1e-6 + 2 * 1e-5, 1e-12);
  for (const Level level : {Level::kReplicate, Level::kZero1}) {
    EXPECT_NEAR(accumulation(2, level, 1), 1e-6, 1e-12) << plan::to_string(level);
    EXPECT_NEAR(accumulation(2, level, 3), 1e-6 + 2 * 1e-5, 1e-12) << plan::to_string(level);
  }
  for (const Level level : {Level::kZero2, Level::kZero3}) {
    EXPECT_EQ(accumulation(2, level, 1), 0) << plan::to_string(level);
    EXPECT_NEAR(accumulation(2, level, 3), 2 * 1e-4 / 2, 1e-12) << plan::to_string(level);
  }
}

/// Of an all-gather, of which each of two ranks sends `sent` bytes: half of a block's values, 4 bytes each.
TEST(StepTime, MessagesTakeWhatWasMeasuredOfTheirSize) {
  constexpr auto kSent = static_cast<int64_t>(4 * kBlock / 2);
  const auto gathers = [](const std::vector<LinkTimes::Sample>& samples) {
    Profile profile = profile_of(1, {0, 0}, {1, 1}, {0, 0});
    set_links(profile, {});
    set_link(profile, "all_gather", {.latency = 7});
    profile.links.back().samples = samples;
    plan::Plan plan = plan_of(1, 2);
    plan.units[1].level = plan::Level::kZero2;
    const StepTime time = predict_step(profile, {.plan = plan, .inputs = {.compute_bytes = 4}});
    return time.stages[0].parts.gathers;
  };
  // Between two sizes, at one, beyond the largest, below the smallest.
  EXPECT_NEAR(gathers({{kSent / 2, 2}, {kSent / 2 * 3, 6}, {kSent * 4, 26}}), 4, kNear);
  EXPECT_NEAR(gathers({{kSent / 2, 2}, {kSent, 5}, {kSent * 2, 6}}), 5, kNear);
  EXPECT_NEAR(gathers({{kSent / 4, 1}, {kSent / 2, 2}}), 4, kNear);
  EXPECT_NEAR(gathers({{kSent * 2, 8}, {kSent * 4, 14}}), 5, kNear);
  EXPECT_NEAR(gathers({{kSent * 2, 1}, {kSent * 4, 14}}), 0, kNear);  // never below 0
  EXPECT_NEAR(gathers({{kSent, 5}}), 7, kNear);                       // the line, without a size to go on to
}

TEST(StepTime, FrozenUnitsHaveNeitherBackwardPassNorUpdate) {
  Profile profile = profile_of(3, {1, 2}, {10, 20}, {3, 4});
  profile.optimizer_seconds = 1e-6;
  const StepTime time = predict_step(
      profile, {.plan = plan_of(3, 1), .inputs = {.frozen_units = 2}, .batch = 2, .accumulation = 1});
  EXPECT_NEAR(time.seconds, 1 + 30 + 3 + 2 * 20 + 4 + 1e-6 * (2 * kBlock + kHead), kNear);
}

TEST(StepTime, BatchesAreInterpolatedAndTheLastSegmentGoesOn) {
  Profile profile;
  profile.model = vit(1);
  profile.units = {{"stem", 1, 2, plan::Recompute::kNone, 1, 2, 0},
                   {"blocks.0", 1, 2, plan::Recompute::kNone, 10, 20, 0},
                   {"blocks.0", 1, 4, plan::Recompute::kNone, 16, 30, 0},
                   {"blocks.0", 1, 8, plan::Recompute::kNone, 32, 50, 0},
                   {"head", 1, 2, plan::Recompute::kNone, 3, 4, 0}};
  const auto seconds = [&](int64_t batch) {
    return predict_step(profile, {.plan = plan_of(1, 1), .batch = batch}).seconds;
  };
  EXPECT_NEAR(seconds(2), 40, kNear);
  EXPECT_NEAR(seconds(3), 15 + 13 + 25, kNear);  // one measured batch: proportional
  EXPECT_NEAR(seconds(6), 30 + 24 + 40, kNear);
  EXPECT_NEAR(seconds(1), 5 + 7 + 15, kNear);
  EXPECT_NEAR(seconds(10), 50 + 40 + 60, kNear);
}

TEST(StepTime, DataThatComeMoreSlowlyThanTheStepGoesAreWaitedFor) {
  Profile profile = profile_of(1, {1, 2}, {10, 20}, {3, 4});
  profile.data_seconds = 3;
  const auto time = [&](int64_t batch) {
    return predict_step(profile, {.plan = plan_of(1, 1), .batch = batch, .accumulation = 2});
  };
  EXPECT_NEAR(time(5).seconds, 80, kNear);
  EXPECT_NEAR(time(20).seconds, 120, kNear);
  EXPECT_NEAR(time(20).stages[0].parts.data, 40, kNear);
}

/// Seconds of a pipeline with blocks of f = 1 and b = 2.
double pipeline_seconds(plan::Schedule schedule, int64_t stages, int64_t parts, int64_t micro_batches) {
  Profile profile = profile_of(stages * parts, {}, {1, 2}, {});
  set_links(profile, {});
  const plan::Plan plan = pipeline_of(stages * parts, schedule, stages, micro_batches);
  const StepTime time = predict_step(profile, {.plan = plan, .batch = 1, .accumulation = micro_batches});
  expect_parts_add_up(time);
  return time.seconds;
}

TEST(StepTime, GpipeAnd1F1BFollowTheClosedForm) {
  for (const int64_t stages : {2, 3, 4, 8}) {
    for (const int64_t micro_batches : {1, 2, 5, 8, 16}) {
      const auto expected = static_cast<double>(micro_batches + stages - 1) * 3;
      EXPECT_NEAR(pipeline_seconds(plan::Schedule::kGpipe, stages, 1, micro_batches), expected, kNear);
      EXPECT_NEAR(pipeline_seconds(plan::Schedule::k1F1B, stages, 1, micro_batches), expected, kNear);
    }
  }
}

TEST(StepTime, InterleavedFollowsTheClosedForm) {
  for (const int64_t stages : {2, 4}) {
    for (const int64_t parts : {2, 3}) {
      for (const int64_t rounds : {1, 2, 4}) {
        const auto m = static_cast<double>(rounds * stages), p = static_cast<double>(stages),
                   v = static_cast<double>(parts);
        EXPECT_NEAR(pipeline_seconds(plan::Schedule::kInterleaved, stages, parts, rounds * stages),
                    m * 3 * v + (p - 1) * 3, kNear)
            << stages << " stages, " << parts << " parts, " << rounds << " rounds";
      }
    }
  }
}

// plan::simulate is another program, whose stages know no units and no streams.
TEST(StepTime, UnevenStagesTakeAsLongAsTheSimulatedSchedule) {
  constexpr double kMessage = 0.3;
  for (const auto schedule : {plan::Schedule::kGpipe, plan::Schedule::k1F1B}) {
    for (const int64_t ahead : {0, 1}) {
      if (ahead == 1 && schedule == plan::Schedule::kGpipe) continue;
      Profile profile = profile_of(7, {2, 0.5}, {1, 1.7}, {0.3, 3});
      set_links(profile, {.latency = kMessage});
      plan::Plan plan = plan_of(7, 3);
      plan::PipelineSettings settings = settings_of(3, 7, schedule);
      settings.blocks = {2, 4, 1};
      settings.ahead = ahead;
      plan::set_pipeline(&plan, vit(7), settings);
      const plan::ScheduleShape shape = plan::shape_of(plan);
      const plan::PassCosts costs{{4, 4, 1.3}, {0.5 + 2 * 1.7, 4 * 1.7, 1.7 + 3}, kMessage};
      const StepTime time = predict_step(profile, {.plan = plan, .batch = 1, .accumulation = 7});
      const plan::Timing expected = plan::simulate(shape, plan::schedules_of(shape), costs);
      EXPECT_NEAR(time.seconds, expected.makespan, kNear);
      EXPECT_EQ(time.timing.in_flight, expected.in_flight);
      for (size_t stage = 0; stage < 3; ++stage) {
        for (size_t i = 0; i < expected.stages[stage].size(); ++i) {
          EXPECT_EQ(time.timing.stages[stage][i].action, expected.stages[stage][i].action);
          EXPECT_NEAR(time.timing.stages[stage][i].begin, expected.stages[stage][i].begin, kNear);
          EXPECT_NEAR(time.timing.stages[stage][i].end, expected.stages[stage][i].end, kNear);
        }
      }
      expect_parts_add_up(time);
    }
  }
}

TEST(StepTime, PipelineMessagesAndBubbleAreTold) {
  Profile profile = profile_of(2, {}, {1, 2}, {});
  set_links(profile, {.latency = 0.25, .bytes_per_second = 16 * 64 * 4 * 3 / 0.5});
  const StepTime time = predict_step(
      profile, {.plan = pipeline_of(2, plan::Schedule::k1F1B, 2, 1), .batch = 3, .accumulation = 1});
  constexpr double kMessage = 0.25 + 0.5;  // 16 tokens of 64 values, 3 images, fp32
  EXPECT_NEAR(time.seconds, 2 * 3 + 2 * kMessage, kNear);
  EXPECT_NEAR(time.stages[0].parts.messages, kMessage, kNear);  // the activation passes while stage 1 waits
  EXPECT_NEAR(time.stages[0].parts.bubble, kMessage + 1 + 2, kNear);
  EXPECT_NEAR(time.stages[1].parts.messages, kMessage, kNear);
  EXPECT_NEAR(time.stages[1].parts.bubble, 1 + kMessage + 2, kNear);
  expect_parts_add_up(time);
}

TEST(StepTime, InfinitelyFastLinksLeaveComputation) {
  for (const auto level :
       {plan::Level::kReplicate, plan::Level::kZero1, plan::Level::kZero2, plan::Level::kZero3}) {
    for (const int64_t tensor : {1, 2}) {
      Profile profile = profile_of(3, {1, 2}, {10, 20}, {3, 4});
      set_links(profile, {});
      plan::Plan plan = plan_of(3, 4, level);
      plan::set_tensor(&plan, vit(3), {.tensor = tensor}, true);
      const StepTime time = predict_step(profile, {.plan = plan, .batch = 2, .accumulation = 3});
      EXPECT_NEAR(time.seconds, 3 * 100, kNear);
      expect_parts_add_up(time);
    }
  }
}

/// Seconds of an all-gather or reduce-scatter of `values` over 2 ranks in fp32: half of them leave.
double message(double values, const Link& link) {
  return link.latency + std::ceil(values / 2) * 4 / link.bytes_per_second;
}

// Gathers go on beside the unit before; sums of gradients beside the unit after.
TEST(StepTime, ExposedGathersFollowTheClosedForm) {
  for (const double speed : {1e3, 1e4, 3e4, 1e5, 1e9}) {
    const Link link{.latency = 0.01, .bytes_per_second = speed};
    Profile profile = profile_of(1, {1, 2}, {3, 6}, {1.5, 2.5});
    set_links(profile, {});
    set_link(profile, "all_gather", link);
    const double stem = message(kStem, link), block = message(kBlock, link), head = message(kHead, link);
    const StepTime time = predict_step(profile, {.plan = plan_of(1, 2, plan::Level::kZero3)});
    // The head stays gathered for its backward pass.
    const double expected = stem + std::max(1.0, block) + std::max(3.0, head) + 1.5 + std::max(2.5, block) +
                            std::max(6.0, stem) + 2;
    EXPECT_NEAR(time.seconds, expected, kNear * expected) << speed;
    EXPECT_NEAR(time.stages[0].parts.gathers, expected - 16, kNear * expected);
    EXPECT_NEAR(time.stages[0].hidden_gathers, 2 * stem + 2 * block + head - (expected - 16),
                kNear * expected);
    expect_parts_add_up(time);
  }
}

TEST(StepTime, WithoutPrefetchAllMessagesAreExposed) {
  const Link link{.latency = 0.01, .bytes_per_second = 3e4};
  Profile profile = profile_of(1, {1, 2}, {3, 6}, {1.5, 2.5});
  set_links(profile, link);
  plan::Plan plan = plan_of(1, 2, plan::Level::kZero3);
  plan.prefetch = 0;
  const double stem = message(kStem, link), block = message(kBlock, link), head = message(kHead, link);
  EXPECT_NEAR(predict_step(profile, {.plan = plan}).seconds, 16 + 3 * stem + 3 * block + 2 * head, kNear);
}

TEST(StepTime, ExposedReductionsFollowTheClosedForm) {
  for (const double speed : {1e3, 1e4, 3e4, 1e5, 1e9}) {
    const Link link{.latency = 0.01, .bytes_per_second = speed};
    Profile profile = profile_of(1, {1, 2}, {3, 6}, {1.5, 2.5});
    set_links(profile, {});
    set_link(profile, "reduce_scatter", link);
    const double stem = message(kStem, link), block = message(kBlock, link), head = message(kHead, link);
    // A unit's sum begins when the one before has ended, and all have ended when the pass ends.
    const double pass = 5.5 + 2.5 + std::max(6.0, head) + std::max(2.0, block) + stem;
    const auto seconds = [&](plan::Level level, int64_t accumulation) {
      return predict_step(profile, {.plan = plan_of(1, 2, level), .accumulation = accumulation}).seconds;
    };
    EXPECT_NEAR(seconds(plan::Level::kZero1, 1), pass, kNear * pass) << speed;
    EXPECT_NEAR(seconds(plan::Level::kZero1, 3), 2 * 16 + pass, kNear * pass) << "sums once a step";
    EXPECT_NEAR(seconds(plan::Level::kZero2, 3), 3 * pass, kNear * pass) << "sums every micro-batch";
    EXPECT_NEAR(seconds(plan::Level::kReplicate, 3), 2 * 16 + pass, kNear * pass);
  }
}

TEST(StepTime, MessagesOverSharedMemoryTakeTheRanksOwnTime) {
  const Link link{.latency = 0.01, .bytes_per_second = 3e4, .transport = "shared memory"};
  Profile profile = profile_of(1, {1, 2}, {3, 6}, {1.5, 2.5});
  set_links(profile, link);
  const double stem = message(kStem, link), block = message(kBlock, link), head = message(kHead, link);
  const StepTime time = predict_step(profile, {.plan = plan_of(1, 2, plan::Level::kZero3)});
  EXPECT_NEAR(time.seconds, 16 + 3 * stem + 3 * block + 2 * head, kNear);
  EXPECT_NEAR(time.stages[0].parts.gathers, 2 * stem + 2 * block + head, kNear);
  EXPECT_NEAR(time.stages[0].parts.reductions, stem + block + head, kNear);
  EXPECT_NEAR(time.stages[0].hidden_gathers, 0, kNear);
  EXPECT_EQ(error_text([&] {
              predict_step(profile, {.plan = plan_of(1, 2, plan::Level::kZero3), .shared_memory = false});
            }),
            "[planner.predict_step] the profile has no all_gather between 2 adjacent ranks of a host over "
            "TCP; run tessera plan profile with more ranks (--procs)");
}

/// Ranks lose a tenth of what they compute where they meet behind each unit, and a twentieth where behind
/// several.
Profile profile_with_lag(const char* transport) {
  Profile profile = profile_of(1, {1, 2}, {3, 6}, {1.5, 2.5});
  set_links(profile, {.transport = transport});
  profile.unit_lag = 0.1;
  profile.micro_batch_lag = 0.05;
  return profile;
}

TEST(StepTime, RanksThatCopyByThemselvesMeetBehindEachUnit) {
  const Profile profile = profile_with_lag("shared memory");
  const auto seconds = [&](plan::Level level, int64_t accumulation) {
    const StepTime time = predict_step(profile, {.plan = plan_of(1, 2, level), .accumulation = accumulation});
    expect_parts_add_up(time);
    return time.seconds;
  };
  // They meet behind the stem for the head's gather, and behind head, block and stem for the sums.
  const double pass = 16 + 0.1 * (1 + 6 + 2) + 0.05 * (3 + 1.5 + 2.5);
  EXPECT_NEAR(seconds(plan::Level::kZero2, 1), pass, kNear);
  // Later micro-batches gather nothing.
  EXPECT_NEAR(seconds(plan::Level::kZero2, 3), pass + 2 * (16 + 0.1 * (6 + 2) + 0.05 * 8), kNear);
  // And sum nothing but in the last one; replicas gather nothing at all.
  EXPECT_NEAR(seconds(plan::Level::kReplicate, 3), 48 + 0.1 * (6 + 2) + 0.05 * (2 * 16 + 8), kNear);
}

TEST(StepTime, RanksThatSendInTheBackgroundMeetAtTheEndOfAPass) {
  const Profile profile = profile_with_lag("TCP");
  for (const auto level : {plan::Level::kReplicate, plan::Level::kZero1, plan::Level::kZero2}) {
    const StepTime time = predict_step(profile, {.plan = plan_of(1, 2, level), .accumulation = 3});
    EXPECT_NEAR(time.seconds, 48 * 1.05, kNear) << plan::to_string(level);
    EXPECT_NEAR(time.stages[0].parts.compute, 48, kNear);
    EXPECT_NEAR(time.stages[0].parts.reductions, 0.05 * 48, kNear);
  }
}

TEST(StepTime, ATensorGroupMeetsBehindEachUnitUnlessItsExchangesWereMeasuredSo) {
  Profile profile = profile_with_lag("TCP");
  profile.units.clear();
  for (const auto& [kind, pass] :
       {std::pair{"stem", SetPass{1, 2}}, {"blocks.0", {3, 6}}, {"head", {1.5, 2.5}}})
    for (const int64_t tensor : {1, 2})
      profile.units.push_back({kind, tensor, 2, plan::Recompute::kNone, pass.forward, pass.backward, 0});
  plan::Plan plan = plan_of(1, 2);
  plan::set_tensor(&plan, vit(1), {.tensor = 2}, true);
  const auto lag = [&](int64_t pieces) {
    const StepTime time = predict_step(profile, {.plan = plan, .batch = 2, .pieces = pieces});
    expect_parts_add_up(time);
    return time.seconds - 16;
  };
  // Behind the block's two passes, and at the end behind stem and head.
  EXPECT_NEAR(lag(1), 0.1 * (3 + 6) + 0.05 * (1 + 1.5 + 2.5 + 2), kNear);
  for (LinkTimes& link : profile.links)
    if (link.operation == "exchange") link.in_pieces = {{2, {{1, 1e-12, 0}, {1 << 20, 1e-12, 0}}}};
  EXPECT_NEAR(lag(2), 0.05 * (1 + 1.5 + 2.5 + 2), kNear);
}

TEST(StepTime, OneRankOfAStageMeetsNobody) {
  const Profile profile = profile_with_lag("TCP");
  EXPECT_NEAR(predict_step(profile, {.plan = plan_of(1, 1), .accumulation = 2}).seconds, 32, kNear);
  Profile blocks = profile_of(2, {}, {1, 2}, {});
  set_links(blocks, {});
  blocks.unit_lag = blocks.micro_batch_lag = 0.5;
  const plan::Plan stages = pipeline_of(2, plan::Schedule::k1F1B, 2, 4);
  EXPECT_NEAR(predict_step(blocks, {.plan = stages, .accumulation = 4}).seconds, (4 + 1) * 3, kNear);
}

TEST(StepTime, SlowdownsApplyWhileBothAreUnderWay) {
  const Link link{.bytes_per_second = 1e5};
  Profile profile = profile_of(1, {1, 2}, {3, 6}, {1.5, 2.5});
  set_links(profile, {});
  set_link(profile, "all_gather", link);
  profile.compute_slowdown = 2;
  profile.link_slowdown = 4;
  const double stem = message(kStem, link), block = message(kBlock, link), head = message(kHead, link);
  ASSERT_LT(4 * head, 3);
  // A message M beside a longer computation C takes 4 M, in which the computation gets half as far.
  const auto beside = [](double compute, double m) {
    if (4 * m <= 2 * compute) return compute + 2 * m;
    return 2 * compute + m - 2 * compute / 4;
  };
  const double expected =
      stem + beside(1, block) + beside(3, head) + 1.5 + beside(2.5, block) + beside(6, stem) + 2;
  const StepTime time = predict_step(profile, {.plan = plan_of(1, 2, plan::Level::kZero3)});
  EXPECT_NEAR(time.seconds, expected, kNear);
  EXPECT_NEAR(time.stages[0].parts.compute, 16, kNear);
  expect_parts_add_up(time);
}

TEST(StepTime, HybridShardingSumsOverReplicasOnceAStep) {
  Profile profile = profile_of(1, {}, {}, {});
  const Link link{.latency = 1, .bytes_per_second = 1e4, .transport = "shared memory"};
  set_links(profile, link);
  plan::Plan plan = plan_of(1, 4, plan::Level::kZero2);
  plan::set_shard_ranks(&plan, 2);
  const StepTime time = predict_step(profile, {.plan = plan, .accumulation = 3});
  const double bytes = (kStem + kBlock + kHead + 2) * 4;  // the head is padded to a multiple of 4
  // Halves over the shards: a gather and three sums. Quarters over the replicas: a sum and a gather.
  EXPECT_NEAR(time.seconds, 3 * (4 + 2) + (4 * bytes / 2 + 2 * bytes / 4) / 1e4, 1e-6);
}

/// Messages of gradients take no time.
Profile tensor_profile(const Link& link) {
  Profile profile = profile_of(1, {1, 2}, {3, 6}, {1.5, 2.5});
  set_links(profile, {});
  set_link(profile, "exchange", link);
  return profile;
}

plan::Plan tensor_plan() {
  plan::Plan plan = plan_of(1, 2);
  plan::set_tensor(&plan, vit(1), {.tensor = 2}, true);
  return plan;
}

/// A step whose 2 ranks compute blocks together.
StepTime tensor_step(const Link& link, const std::function<void(plan::UnitPlan&)>& change, int64_t pieces) {
  plan::Plan plan = tensor_plan();
  change(plan.units[1]);
  return predict_step(tensor_profile(link), {.plan = plan, .batch = 8, .pieces = pieces});
}

TEST(StepTime, ExchangesOfTensorGroupsFollowTheClosedForm) {
  const Link link{.latency = 0.01, .bytes_per_second = 1e6};
  const double one = 0.01 + 16 * 64 * 8 * 4 / 1e6;  // tokens, width, images, fp32
  const auto seconds = [&](const std::function<void(plan::UnitPlan&)>& change) {
    const StepTime time = tensor_step(link, change, 1);
    EXPECT_NEAR(time.stages[0].parts.exchange, time.seconds - 16, kNear);
    return time.seconds;
  };
  EXPECT_NEAR(seconds([](plan::UnitPlan&) {}), 16 + 8 * one, kNear);
  EXPECT_NEAR(seconds([](plan::UnitPlan& unit) { unit.keep_gathered = false; }), 16 + 10 * one, kNear);
  EXPECT_NEAR(seconds([](plan::UnitPlan& unit) { unit.recompute = plan::Recompute::kAll; }), 16 + 11 * one,
              kNear);
}

TEST(StepTime, PiecesHideAllButAShareOfAnExchange) {
  const Link link{.bytes_per_second = 16 * 64 * 8 * 4 / 0.5};  // 0.5 s a message, 2 s a pass
  const auto nothing = [](plan::UnitPlan&) {};
  const StepTime time = tensor_step(link, nothing, 4);
  // Forward: max(3, 2) + min(3, 2) / 4; backward: max(6, 2) + min(6, 2) / 4.
  EXPECT_NEAR(time.seconds, 16 + 0.5 + 0.5, kNear);
  EXPECT_NEAR(time.stages[0].hidden_exchange, 3, kNear);
  const Link slow{.bytes_per_second = 16 * 64 * 8 * 4 / 2.0};  // 8 s a pass
  EXPECT_NEAR(tensor_step(slow, nothing, 4).seconds, 7 + (8 + 3.0 / 4) + (8 + 6.0 / 4), kNear);
  const Link copies{.bytes_per_second = 16 * 64 * 8 * 4 / 0.5, .transport = "shared memory"};
  EXPECT_NEAR(tensor_step(copies, nothing, 4).seconds, 16 + 4, kNear);
}

/// A message of 8 images carries 32 KiB. The block's forward pass (3 s) and its backward pass (6 s) have four
/// each. Slowdowns are in what was measured.
TEST(StepTime, MeasuredPiecesTakeTheLatencyOnce) {
  constexpr int64_t kBytes = 16 * 64 * 8 * 4;
  const auto seconds = [](std::vector<LinkTimes::InPieces> in_pieces, int64_t batch, int64_t pieces) {
    Profile profile = tensor_profile({.latency = 1});
    profile.compute_slowdown = profile.link_slowdown = 2;
    profile.links.back().in_pieces = std::move(in_pieces);
    const StepTime time = predict_step(profile, {.plan = tensor_plan(), .batch = batch, .pieces = pieces});
    expect_parts_add_up(time);
    EXPECT_NEAR(time.stages[0].parts.exchange, time.seconds - 16, kNear);
    return time.seconds - 16;
  };
  // Four messages of 0.5 s, of which 0.1 s each remain beside 3 s and 6 s of products.
  const LinkTimes::InPieces four{4, {{kBytes, 0.5, 0.1}, {2 * kBytes, 0.9, 0.2}}};
  EXPECT_NEAR(seconds({four}, 8, 4), 0.4 + 0.4, kNear);
  EXPECT_NEAR(seconds({four}, 12, 4), 4 * 0.15 + 4 * 0.15, kNear) << "between two sizes";
  EXPECT_NEAR(seconds({four}, 8, 7), 0.4 + 0.4, kNear) << "as the most pieces that were measured";
  // Of 4 s alone 3 s of products cover three quarters, and 6 s all.
  const LinkTimes::InPieces slow{4, {{kBytes, 1, 0.3}, {2 * kBytes, 2, 0.6}}};
  EXPECT_NEAR(seconds({slow}, 8, 4), (1.2 + 0.25 * (4 - 1.2)) + 1.2, kNear);
  // Two images have two pieces at most, one image one message with its latency.
  const LinkTimes::InPieces two{2, {{kBytes / 4, 0.6, 0.2}, {kBytes, 0.7, 0.3}}};
  EXPECT_NEAR(seconds({two, four}, 2, 4), 0.8 + 0.8, kNear);
  EXPECT_NEAR(seconds({two, four}, 8, 3), 1.2 + 1.2, kNear);
  EXPECT_NEAR(seconds({two, four}, 1, 4), 4 + 4, kNear);
}

/// Batches of 4 and 8 images were measured with peers, and waited 100 + 200 s and 300 + 400 s longer.
TEST(StepTime, MeasuredPeersCountInThePlaceOfLinks) {
  Profile profile = tensor_profile({.latency = 1});
  profile.unit_lag = 0.5;
  const auto peers = [](double forward, double backward) {
    return PeerTimes{"TCP", 4, true, forward, backward};
  };
  std::vector<UnitTimes> units;
  for (UnitTimes unit : profile.units) {
    if (unit.batch != profile.units.front().batch) continue;
    for (const int64_t batch : {4, 8}) {
      unit.batch = batch;
      if (unit.tensor == 2) unit.peers = batch == 4 ? peers(100, 200) : peers(300, 400);
      units.push_back(unit);
    }
  }
  profile.units = units;
  const auto exchange = [&](int64_t batch, int64_t pieces, bool keep_gathered = true) {
    plan::Plan plan = tensor_plan();
    plan.units[1].keep_gathered = keep_gathered;
    const StepTime time = predict_step(profile, {.plan = plan, .batch = batch, .pieces = pieces});
    expect_parts_add_up(time);
    return time.stages[0].parts.exchange;
  };
  EXPECT_NEAR(exchange(4, 4), 100 + 200, kNear);
  EXPECT_NEAR(exchange(8, 4), 300 + 400, kNear);
  EXPECT_NEAR(exchange(6, 4), 200 + 300, kNear) << "between two batches";
  // Links say what other ways change. The lag of both is the same.
  const auto on_links = [&](int64_t pieces, bool keep_gathered) {
    Profile links = profile;
    for (UnitTimes& unit : links.units) unit.peers.reset();
    std::swap(links, profile);
    const double seconds = exchange(8, pieces, keep_gathered);
    std::swap(links, profile);
    return seconds;
  };
  const double known = on_links(4, true);
  EXPECT_NEAR(exchange(8, 2), 300 + 400 + on_links(2, true) - known, kNear);
  EXPECT_GT(exchange(8, 4, /*keep_gathered=*/false), 300 + 400);
  EXPECT_NEAR(exchange(8, 4, /*keep_gathered=*/false), 300 + 400 + on_links(4, false) - known, kNear);
  for (UnitTimes& unit : profile.units) {
    if (unit.batch == 4 && unit.peers) unit.peers->transport = "shared memory";
  }
  EXPECT_NEAR(exchange(8, 4), known, kNear) << "two batches were measured over different transports";
}

TEST(StepTime, PiecesThatAProfileLacksAreSaid) {
  Profile profile = tensor_profile({.latency = 0.1});
  const auto predicted = [&] {
    return predict_step(profile, {.plan = tensor_plan(), .batch = 8, .pieces = 4});
  };
  // Sixteen latencies a pass, 1.6 s: a quarter of it is exposed.
  EXPECT_NEAR(predicted().seconds, 16 + 0.4 + 0.4, kNear);
  EXPECT_EQ(predicted().assumptions, std::vector<std::string>()) << "of an assumed or imported machine";
  profile.provenance.build = "tessera";
  EXPECT_EQ(predicted().assumptions,
            (std::vector<std::string>{"exchanges in several pieces: measured one after the other; run "
                                      "tessera plan profile again"}));
  EXPECT_NEAR(predicted().seconds, 16 + 0.4 + 0.4, kNear);
}

TEST(StepTime, FasterLinksAreNeverSlower) {
  for (const auto level :
       {plan::Level::kReplicate, plan::Level::kZero1, plan::Level::kZero2, plan::Level::kZero3}) {
    for (const int64_t prefetch : {0, 1, 2}) {
      for (const int64_t stages : {1, 2}) {
        Profile profile = profile_of(4, {1, 2}, {3, 5}, {1, 2});
        plan::Plan plan = plan_of(4, 8, level);
        plan.prefetch = prefetch;
        if (stages > 1) plan::set_pipeline(&plan, vit(4), settings_of(stages, 4));
        plan::set_tensor(&plan, vit(4), {.tensor = 2}, true);
        double before = std::numeric_limits<double>::infinity();
        for (double speed = 1e3; speed < 1e9; speed *= 1.7) {
          set_links(profile, {.latency = 10 / speed, .bytes_per_second = speed});
          const StepTime time =
              predict_step(profile, {.plan = plan, .batch = 2, .accumulation = 4, .pieces = 4});
          EXPECT_LE(time.seconds, before * (1 + 1e-12));
          before = time.seconds;
          expect_parts_add_up(time);
        }
      }
    }
  }
}

TEST(StepTime, AssumptionsNameTheMeasurementThatWasUsed) {
  Profile profile = profile_of(1, {1, 2}, {3, 6}, {1.5, 2.5});
  set_links(profile, {});
  EXPECT_EQ(predict_step(profile, {.plan = plan_of(1, 2, plan::Level::kZero3)}).assumptions,
            std::vector<std::string>());
  EXPECT_EQ(predict_step(profile, {.plan = plan_of(1, 4, plan::Level::kZero3)}).assumptions,
            (std::vector<std::string>{
                "all_gather between 4 adjacent ranks of a host: measured with 2 adjacent ranks",
                "reduce_scatter between 4 adjacent ranks of a host: measured with 2 adjacent ranks"}));
}

TEST(StepTime, GroupsOfSeveralHostsUseTheLinkWithAsManyRanksOnEach) {
  Profile profile = profile_of(1, {1, 2}, {3, 6}, {1.5, 2.5});
  for (const int64_t in_host : {1, 2, 8}) {
    for (const char* operation : {"all_gather", "reduce_scatter"}) {
      profile.links.push_back({.operation = operation,
                               .kind = kHosts,
                               .transport = "NCCL",
                               .ranks = 8,
                               .latency = static_cast<double>(in_host),
                               .bytes_per_second = 1e18,
                               .in_host = in_host});
    }
  }
  const auto gathers = [&](int64_t ranks_of_host) {
    plan::Plan plan = plan_of(1, 8, plan::Level::kZero3);
    plan.prefetch = 0;
    return predict_step(profile, {.plan = plan, .ranks_of_host = ranks_of_host});
  };
  EXPECT_NEAR(gathers(1).stages[0].parts.gathers, 5 * 1, kNear);  // 3 units, the last one once
  EXPECT_NEAR(gathers(2).stages[0].parts.gathers, 5 * 2, kNear);
  const StepTime four = gathers(4);  // nearest below
  EXPECT_NEAR(four.stages[0].parts.gathers, 5 * 2, kNear);
  EXPECT_EQ(four.assumptions.at(0),
            "all_gather between 8 ranks of several hosts, 4 on each: measured with 8 ranks, 2 on each");
  profile.provenance.assumed = "a data sheet";
  EXPECT_EQ(gathers(4).assumptions.at(0),
            "all_gather between 8 ranks of several hosts, 4 on each: as with 8 ranks, 2 on each");
}

TEST(StepTime, ErrorsNameWhatTheProfileLacks) {
  Profile profile = profile_of(1, {1, 2}, {3, 6}, {1.5, 2.5});
  set_links(profile, {});
  plan::Plan plan = plan_of(1, 16);
  plan::set_tensor(&plan, vit(1), {.tensor = 16}, true);
  EXPECT_EQ(error_text([&] { predict_step(profile, {.plan = plan}); }),
            "[planner.predict_step] the profile has no times of \"blocks.0\" with tensor 16 and recompute "
            "\"none\"; run tessera plan profile with --tensor 1,16");
  Profile assumed = profile;
  assumed.provenance.assumed = "a data sheet";
  EXPECT_EQ(error_text([&] { predict_step(assumed, {.plan = plan}); }),
            "[planner.predict_step] the profile has no times of \"blocks.0\" with tensor 16 and recompute "
            "\"none\"; an assumed profile has powers of two up to the ranks of a host");
  EXPECT_EQ(error_text([&] {
              predict_step(profile, {.plan = plan_of(1, 4, plan::Level::kZero3), .ranks_of_host = 2});
            }),
            "[planner.predict_step] the profile has no all_gather between 4 ranks of several hosts; give the "
            "number of ranks of a host, or measure with tessera plan profile-hosts");
  EXPECT_EQ(error_text([&] { predict_step(profile, {.plan = plan_of(2, 1)}); }),
            "[planner.predict_step] the plan has 4 units: expected the 3 units of the model");
}

TEST(StepTime, EventsCoverTheStep) {
  Profile profile = profile_of(2, {1, 2}, {3, 6}, {1.5, 2.5});
  set_links(profile, {.latency = 0.1});
  plan::Plan plan = plan_of(2, 4, plan::Level::kZero3);
  plan::set_pipeline(&plan, vit(2), settings_of(2, 2));
  const StepTime time = predict_step(profile, {.plan = plan, .accumulation = 2, .record = true});
  double computed[2] = {0, 0};
  for (const StepEvent& event : time.events) {
    EXPECT_LE(event.begin, event.end);
    EXPECT_LE(event.end, time.seconds + kNear);
    if (event.track == "compute") computed[event.stage] += event.end - event.begin;
  }
  EXPECT_NEAR(computed[0], 2 * (3 + 9), kNear);
  EXPECT_NEAR(computed[1], 2 * (9 + 4), kNear);
}

TEST(StepTime, AModelOf120BillionOn4096RanksIsPredictedQuickly) {
  Profile profile;
  profile.model = arch::model_config("120B/14");
  profile.provenance.ranks_of_host = 8;
  for (const std::string& kind : unit_kinds(profile.model)) {
    for (const int64_t tensor : {1, 8})
      profile.units.push_back({kind, tensor, 1, plan::Recompute::kNone, 1e-3, 2e-3, 0});
  }
  set_links(profile, {.latency = 1e-5, .bytes_per_second = 5e10, .transport = "NCCL"});
  for (size_t i = 0; i < 4; ++i) {
    profile.links.push_back(profile.links[i]);
    profile.links.back().kind = "hosts";
  }
  plan::Plan plan = plan::uniform_plan(profile.model, 4096, plan::Level::kZero1, false, 1);
  plan::set_pipeline(&plan, profile.model, settings_of(8, 64));
  plan::set_tensor(&plan, profile.model, {.tensor = 8}, true);
  const auto begin = std::chrono::steady_clock::now();
  const StepTime time = predict_step(profile, {.plan = plan, .batch = 1, .accumulation = 64});
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  std::cout << "4,096 ranks, " << plan.units.size() << " units, 8 stages, 64 micro-batches: predicted in "
            << seconds.count() << " s\n";
  EXPECT_LT(seconds.count(), 5);
  EXPECT_GT(time.seconds, 0);
  expect_parts_add_up(time);
}

}  // namespace
}  // namespace tessera::planner
