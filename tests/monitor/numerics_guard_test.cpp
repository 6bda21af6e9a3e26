// SPDX-License-Identifier: Apache-2.0
#include "tessera/monitor/numerics_guard.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "tests/error_text.h"
#include "tests/monitor/not_finite.h"

namespace tessera::monitor {
namespace {

using Verdict = NumericsGuard::Verdict;

std::vector<Verdict> judge(NumericsGuard& guard, const std::vector<double>& losses) {
  std::vector<Verdict> verdicts;
  for (const double loss : losses) verdicts.push_back(guard.judge(loss, 1));
  return verdicts;
}

TEST(NumericsGuard, StopsAtOnceUnlessToldToSkip) {
  NumericsGuard guard({});
  EXPECT_EQ(guard.judge(1, 1), Verdict::kUse);
  EXPECT_EQ(guard.judge(1e30, 1e30), Verdict::kUse);  // large is not bad
  EXPECT_EQ(guard.judge(kNan, 1), Verdict::kStopNotFinite);
  EXPECT_EQ(NumericsGuard({}).judge(1, kInfinity), Verdict::kStopNotFinite);
  EXPECT_EQ(NumericsGuard({}).judge(-kInfinity, 1), Verdict::kStopNotFinite);
  EXPECT_EQ(guard.skipped(), 0);
}

TEST(NumericsGuard, SkipsSoManyInARowThenStops) {
  NumericsGuard guard({.skip_steps = 2});
  EXPECT_EQ(judge(guard, {1, kNan, kNan, 1, kNan, kNan, kNan}),
            (std::vector{Verdict::kUse, Verdict::kSkipNotFinite, Verdict::kSkipNotFinite, Verdict::kUse,
                         Verdict::kSkipNotFinite, Verdict::kSkipNotFinite, Verdict::kStopNotFinite}));
  EXPECT_EQ(guard.skipped(), 4);
  EXPECT_EQ(guard.bad_in_a_row(), 3);
}

TEST(NumericsGuard, ASpikeIsAboveAFactorOfTheMedian) {
  NumericsGuard guard({.spike_factor = 2, .spike_window = 3, .spike_steps = 2});
  // The window fills: nothing is judged, not even 50.
  EXPECT_EQ(judge(guard, {1, 50, 3}), (std::vector{Verdict::kUse, Verdict::kUse, Verdict::kUse}));
  EXPECT_EQ(guard.median_loss(), 3);
  EXPECT_EQ(guard.judge(6, 1), Verdict::kUse);  // not above; the window is 50, 3, 6
  EXPECT_EQ(guard.median_loss(), 6);
  EXPECT_EQ(guard.judge(12.1, 1), Verdict::kSkipSpike);
  EXPECT_EQ(guard.median_loss(), 6);  // what is skipped is not counted
  EXPECT_EQ(guard.judge(13, 1), Verdict::kSkipSpike);
  EXPECT_EQ(guard.judge(13, 1), Verdict::kStopSpike);
  EXPECT_EQ(guard.skipped(), 2);
}

TEST(NumericsGuard, ASpikeTakesTheStepsAfterItAlong) {
  NumericsGuard guard({.spike_factor = 2, .spike_window = 2, .spike_steps = 1, .spike_skip = 3});
  // Of the range nothing is judged: neither numbers that are fine, nor a spike, nor what is not finite.
  EXPECT_EQ(judge(guard, {1, 1, 9, 1, 9, kNan, 1.5}),
            (std::vector{Verdict::kUse, Verdict::kUse, Verdict::kSkipSpike, Verdict::kSkipRange,
                         Verdict::kSkipRange, Verdict::kSkipRange, Verdict::kUse}));
  EXPECT_EQ(guard.skipped(), 4);
  EXPECT_EQ(guard.left_of_range(), 0);
  EXPECT_EQ(guard.median_loss(), 1.25);  // of the steps that were used
  EXPECT_EQ(guard.judge(9, 1), Verdict::kSkipSpike);
  EXPECT_EQ(guard.left_of_range(), 3);
  EXPECT_EQ(judge(guard, {1, 1, 1, 9}),
            (std::vector{Verdict::kSkipRange, Verdict::kSkipRange, Verdict::kSkipRange, Verdict::kStopSpike}))
      << "a range is no way around guard.spike_steps";
}

TEST(NumericsGuard, TheTwoReasonsCountApart) {
  NumericsGuard guard({.skip_steps = 1, .spike_factor = 2, .spike_window = 1, .spike_steps = 1});
  EXPECT_EQ(judge(guard, {1, 5, kNan, 5, 1}),
            (std::vector{Verdict::kUse, Verdict::kSkipSpike, Verdict::kSkipNotFinite, Verdict::kSkipSpike,
                         Verdict::kUse}));
}

// A device decides by limit() before judge() is asked: over random runs with every kind of step the two never
// differ.
TEST(NumericsGuard, LimitIsKnownBeforeTheStep) {
  std::mt19937_64 random(7);
  const auto draw = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  int64_t used = 0, skipped = 0, stopped = 0;
  for (int run = 0; run < 300; ++run) {
    NumericsGuard guard({.skip_steps = draw(0, 5),
                         .spike_factor = draw(0, 2) == 0 ? 0.0 : 0.5 * static_cast<double>(draw(1, 6)),
                         .spike_window = draw(1, 6),
                         .spike_steps = draw(0, 5),
                         .spike_skip = draw(0, 4)});
    for (int step = 0; step < 100; ++step) {
      double loss = 0.25 * static_cast<double>(draw(1, 12)), norm = 1;
      const int64_t kind = draw(0, 19);
      if (kind < 3) loss = kind == 0 ? kNan : kind == 1 ? kInfinity : -kInfinity;
      if (kind == 3 || kind == 4) norm = kind == 3 ? kNan : kInfinity;
      if (kind == 5) loss = guard.options().spike_factor * guard.median_loss();  // the limit itself
      if (kind == 6) loss = std::nextafter(guard.options().spike_factor * guard.median_loss(), kInfinity);
      if (kind == 7) loss *= 100;
      const StepLimit limit = guard.limit();
      const bool allowed = limit.allows(loss, norm);
      const Verdict verdict = guard.judge(loss, norm);
      ASSERT_EQ(allowed, verdict == Verdict::kUse) << "run " << run << ", step " << step;
      (allowed ? used : skipped) += 1;
      if (verdict == Verdict::kStopNotFinite || verdict == Verdict::kStopSpike) {
        ++stopped;
        break;
      }
    }
  }
  EXPECT_GT(used, 1000);
  EXPECT_GT(skipped, 1000);
  EXPECT_GT(stopped, 20);
}

TEST(NumericsGuard, ContinuesFromWhatWasSaved) {
  const std::vector<double> losses = {2.1, kNan, 2.0, 1.9, 9, 1.8, kNan, kNan, 7.3, 1.7, 3.1, 1.6};
  for (size_t i = 0; i <= 2 * losses.size() + 1; ++i) {
    const size_t cut = i / 2;
    const GuardOptions options{.skip_steps = 2,
                               .spike_factor = 1.5,
                               .spike_window = i % 2 == 0 ? 4 : 2,
                               .spike_steps = 2,
                               .spike_skip = i % 2 == 0 ? 0 : 2};
    NumericsGuard whole(options), first(options), second(options);
    std::vector<Verdict> parts;
    for (size_t i = 0; i < cut; ++i) parts.push_back(first.judge(losses[i], 1));
    second.restore(first.to_json());
    for (size_t i = cut; i < losses.size(); ++i) parts.push_back(second.judge(losses[i], 1));
    EXPECT_EQ(parts, judge(whole, losses)) << cut;
    EXPECT_EQ(second.skipped(), whole.skipped()) << cut;
    EXPECT_EQ(second.to_json(), whole.to_json()) << cut;
  }
}

TEST(NumericsGuard, RestoresFromLessAndFromAnotherWindow) {
  NumericsGuard wide({.spike_factor = 2, .spike_window = 5}), narrow({.spike_factor = 2, .spike_window = 2});
  judge(wide, {1, 2, 3, 4, 5});
  narrow.restore(wide.to_json());
  EXPECT_EQ(narrow.median_loss(), 4.5);
  narrow.restore("");
  EXPECT_TRUE(std::isnan(narrow.median_loss()));
  narrow.restore("{}");
  EXPECT_EQ(narrow.skipped(), 0);
  NumericsGuard shorter({.spike_factor = 2, .spike_skip = 2}), off({.spike_skip = 2});
  for (NumericsGuard* guard : {&shorter, &off}) guard->restore(R"({"range_left": 5})");
  EXPECT_EQ(shorter.left_of_range(), 2);
  EXPECT_EQ(off.left_of_range(), 0) << "the spikes are no longer looked for";
  EXPECT_EQ(error_text([&] {
              narrow.restore("[");
            }).find("[monitor.guard] the saved state of the guard cannot be read: "),
            0U);
}

}  // namespace
}  // namespace tessera::monitor
