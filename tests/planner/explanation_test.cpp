// SPDX-License-Identifier: Apache-2.0
// Explanations against numbers that follow from chosen times by hand, and against predictions of plans that
// are built here.
#include "tessera/planner/explanation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "small_vit.h"
#include "tessera/base/text.h"

namespace tessera::planner {
namespace {

using plan::Level;

constexpr double kGiB = 0x1p30;

FoundPlan plan_with(const StepParts& parts, int64_t batch = 8) {
  FoundPlan found;
  found.question.plan = plan::uniform_plan(vit(2), 2, Level::kReplicate, false, 1);
  found.time.stages = {{parts}};
  found.time.seconds = parts.total();
  found.batch = batch;
  return found;
}

/// With another layout than plan_with().
FoundPlan other_with(const StepParts& parts, int64_t batch = 8) {
  FoundPlan found = plan_with(parts, batch);
  for (plan::UnitPlan& unit : found.question.plan.units) unit.level = Level::kZero3;
  return found;
}

/// A block takes 1 s and 2 s for an image, stem and head a tenth; ranks copy, so messages hide behind
/// nothing.
Profile slow_links(double bytes_per_second) {
  Profile profile;
  profile.model = vit(4);
  profile.provenance.ranks_of_host = 4;
  for (const char* kind : {"stem", "blocks.0", "head"}) {
    const double image = std::string(kind) == "blocks.0" ? 1 : 0.1;
    for (const int64_t tensor : {1, 2}) {
      profile.units.push_back({kind, tensor, 1, plan::Recompute::kNone, image, 2 * image, 0});
      profile.units.push_back({kind, tensor, 1, plan::Recompute::kAll, image, 3 * image, 0});
    }
  }
  for (const char* operation : {"all_gather", "reduce_scatter", "exchange", "send"})
    for (const char* kind : {"adjacent", "strided"})
      profile.links.push_back({operation, kind, "shared memory", 2, 0.01, bytes_per_second, 0, {}});
  return profile;
}

SearchQuestion question_of(int64_t ranks, double memory = 1e12) {
  SearchQuestion question;
  question.ranks = ranks;
  question.memory = memory;
  question.batches = {8};
  return question;
}

struct Explained {
  SearchResult found;
  Explanation explanation;
  const Alternative& of(const std::string& name) const {
    return *std::ranges::find(explanation.alternatives, name, &Alternative::name);
  }
};

Explained explained(const Profile& profile, const SearchQuestion& question) {
  SearchResult found = search(profile, question);
  Explanation explanation = explain(profile, question, found);
  return {std::move(found), std::move(explanation)};
}

/// Seconds of the fastest plan without pipeline, tensor parallelism and recomputation: built here.
double fastest_of_level(const Profile& profile, const SearchQuestion& question, Level level) {
  double best = std::numeric_limits<double>::infinity();
  for (const int64_t micro_batches : {1, 2}) {
    for (const int64_t prefetch : {0, 1, 2}) {
      StepQuestion step;
      step.plan = plan::uniform_plan(profile.model, question.ranks, level, false, prefetch);
      step.accumulation = micro_batches;
      step.inputs.accumulates = micro_batches > 1;
      step.batch = question.batches[0] / question.ranks / micro_batches;
      best = std::min(best, predict_step(profile, step).seconds);
    }
  }
  return best;
}

TEST(Explanation, SecondsHaveThreeDigits) {
  EXPECT_EQ(seconds_text(0), "0 s");
  EXPECT_EQ(seconds_text(2e-9), "0.00 µs");
  EXPECT_EQ(seconds_text(38e-6), "38.0 µs");
  EXPECT_EQ(seconds_text(0.001234), "1.23 ms");
  EXPECT_EQ(seconds_text(0.0456), "45.6 ms");
  EXPECT_EQ(seconds_text(0.9994), "999 ms");
  EXPECT_EQ(seconds_text(0.9996), "1.00 s");
  EXPECT_EQ(seconds_text(12.34), "12.3 s");
  EXPECT_EQ(seconds_text(1234), "1234 s");
}

TEST(Explanation, RankCountsAreDoubledAndHaveTheHostAndAll) {
  EXPECT_EQ(rank_counts(1, 8), (std::vector<int64_t>{1}));
  EXPECT_EQ(rank_counts(16, 8), (std::vector<int64_t>{1, 2, 4, 8, 16}));
  EXPECT_EQ(rank_counts(24, 6), (std::vector<int64_t>{1, 2, 4, 6, 8, 16, 24}));
}

TEST(Explanation, BandwidthChangesAndLatencyStays) {
  Profile profile = slow_links(100);
  profile.links = {{"send", "adjacent", "TCP", 2, 0.5, 100, 0, {{10, 0.25}, {100, 1.5}}}};
  profile.links[0].in_pieces = {{4, {{1, 0.25, 0.1}, {100, 1.5, 0.3}}}};
  const LinkTimes half = with_bandwidth(profile, 0.5).links[0], twice = with_bandwidth(profile, 2).links[0];
  EXPECT_EQ(half.latency, 0.5);
  EXPECT_EQ(half.bytes_per_second, 50);
  EXPECT_EQ(half.samples[0].seconds, 0.25) << "faster than the latency: no time of bytes is in it";
  EXPECT_EQ(half.samples[1].seconds, 2.5);
  EXPECT_EQ(twice.bytes_per_second, 200);
  EXPECT_EQ(twice.samples[1].seconds, 1.0);
  // Of what bytes take longer a quarter is exposed.
  const auto& pieces = half.in_pieces[0].samples;
  EXPECT_EQ(pieces[0], (LinkTimes::InPieces::Sample{1, 0.25, 0.1}));
  EXPECT_EQ(pieces[1], (LinkTimes::InPieces::Sample{100, 2.5, 0.3 + 0.25}));
  EXPECT_EQ(twice.in_pieces[0].samples[1].seconds, 1.0);
}

// A block's forward pass has four exchanges in one piece, its backward pass as many, each of 16 tokens of
// width 64 in fp32.
TEST(Explanation, PeersWaitAsMuchLongerAsLinksSay) {
  Profile profile = slow_links(100);
  profile.provenance.compute = "fp32";
  profile.links.push_back({"exchange", "adjacent", "TCP", 2, 0.5, 1e5, 0, {}});
  const auto cut = std::ranges::find_if(
      profile.units, [](const UnitTimes& unit) { return unit.kind == "blocks.0" && unit.tensor == 2; });
  ASSERT_NE(cut, profile.units.end());
  cut->peers = PeerTimes{"TCP", 1, true, 500, 700};
  const auto place = static_cast<size_t>(cut - profile.units.begin());
  const double one = 16 * 64 * 4 / 1e5;
  const PeerTimes half = *with_bandwidth(profile, 0.5).units[place].peers;
  EXPECT_NEAR(half.forward, 500 + 4 * one, 1e-9);
  EXPECT_NEAR(half.backward, 700 + 4 * one, 1e-9);
  const PeerTimes twice = *with_bandwidth(profile, 2).units[place].peers;
  EXPECT_NEAR(twice.forward, 500 - 4 * one / 2, 1e-9);
  EXPECT_NEAR(twice.backward, 700 - 4 * one / 2, 1e-9);
}

TEST(WhySlower, NamesTheLargestDifferencesFirst) {
  const FoundPlan winner = plan_with({.compute = 0.9, .gathers = 0.1});
  EXPECT_EQ(why_slower(other_with({.compute = 0.9, .gathers = 0.3, .reductions = 0.05}), winner),
            "25.0 % slower: waits 300 ms for gathers of parameters (the winner: 100 ms); "
            "waits 50.0 ms for sums of gradients (the winner: 0 s)");
  EXPECT_EQ(why_slower(other_with({.compute = 0.9, .gathers = 0.3, .reductions = 0.01}), winner),
            "21.0 % slower: waits 300 ms for gathers of parameters (the winner: 100 ms)")
      << "5 % of the loss";
  EXPECT_EQ(why_slower(other_with({.compute = 0.82, .gathers = 0.2, .bubble = 0.23}), winner),
            "25.0 % slower: is idle for 230 ms while other stages compute, 18.4 % of its step "
            "(the winner: 0 s); waits 200 ms for gathers of parameters (the winner: 100 ms)");
}

TEST(WhySlower, ComparesAsManyImages) {
  const FoundPlan winner = plan_with({.compute = 1, .exchange = 0.25}, 8);
  EXPECT_EQ(why_slower(other_with({.compute = 2, .exchange = 1}, 16), winner),
            "20.0 % slower: waits 500 ms for activations of its tensor groups (the winner: 250 ms)");
  EXPECT_EQ(why_slower(other_with({.compute = 2, .exchange = 0.5}, 16), winner), "as fast as the winner");
}

TEST(WhySlower, NamesRecomputation) {
  const FoundPlan winner = plan_with({.compute = 1});
  FoundPlan other = other_with({.compute = 1.3});
  for (plan::UnitPlan& unit : other.question.plan.units) unit.recompute = plan::Recompute::kAll;
  EXPECT_EQ(why_slower(other, winner),
            "30.0 % slower: computes 1.30 s (the winner: 1.00 s) because it computes activations again");
  EXPECT_EQ(why_slower(winner, winner), "this is the winner");
}

TEST(WhyTooLarge, NamesWhatIsMissingAndItsLargestPart) {
  FoundPlan plan = plan_with({.compute = 1});
  plan.memory = {{.states = 10 * kGiB, .activations = 20 * kGiB},
                 {.states = 70 * kGiB, .activations = 26 * kGiB}};
  EXPECT_EQ(
      why_too_large(plan, 80 * kGiB),
      "needs 96.00 GiB of a rank, 16.00 GiB more than there is; most of it for weights and optimizer states");
}

TEST(MostRanksWorth, IsTheLargestNumberAboveTheShare) {
  std::vector<RankCount> counts(4);
  const double images[] = {0, 100, 92, 80};
  for (size_t i = 0; i < counts.size(); ++i) {
    counts[i].ranks = int64_t{1} << i;
    counts[i].images_per_rank_hour = images[i];
    if (i > 0) counts[i].best = plan_with({.compute = 1});
  }
  EXPECT_EQ(most_ranks_worth(counts, 1), 2);
  EXPECT_EQ(most_ranks_worth(counts, 0.9), 4);
  EXPECT_EQ(most_ranks_worth(counts, 0.5), 8);
  EXPECT_EQ(most_ranks_worth({}, 0.5), 0);
}

TEST(Explain, HasTheFastestPlanOfEachKind) {
  const Profile profile = slow_links(1e6);
  const SearchQuestion question = question_of(4);
  const Explained got = explained(profile, question);
  const auto seconds = [&](const std::string& name) { return got.of(name).plan->time.seconds; };
  EXPECT_NEAR(seconds("data parallel"), fastest_of_level(profile, question, Level::kReplicate), 1e-9);
  EXPECT_NEAR(seconds("ZeRO-3"), fastest_of_level(profile, question, Level::kZero3), 1e-9);
  EXPECT_NEAR(seconds("ZeRO-1 or ZeRO-2"),
              std::min(fastest_of_level(profile, question, Level::kZero1),
                       fastest_of_level(profile, question, Level::kZero2)),
              1e-9);
  for (const Alternative& one : got.explanation.alternatives) {
    EXPECT_TRUE(one.fits()) << one.name;
    EXPECT_GE(one.plan->seconds_per_image(), (1 - 1e-9) * got.found.best.front().seconds_per_image())
        << one.name;
    if (one.reason == "this is the winner") continue;
    EXPECT_GE(one.plan->seconds_per_image(), (1 - 1e-9) * got.of(kRunnerUp).plan->seconds_per_image())
        << one.name;
  }
}

TEST(Explain, KindsDoNotMix) {
  // Sums are slow: cutting into stages as well would make tensor parallelism faster, and the other way round.
  Profile slow_sums = slow_links(1e6);
  for (LinkTimes& link : slow_sums.links)
    if (link.operation == "reduce_scatter" || link.operation == "all_gather") link.bytes_per_second = 1e3;
  for (const Profile& profile : {slow_links(1e6), slow_sums}) {
    const Explained got = explained(profile, question_of(4));
    const auto shape = [&](const std::string& name) {
      const plan::Plan& plan = got.of(name).plan->question.plan;
      return std::pair(plan.stages > 1, plan.units[1].is_cut());
    };
    for (const char* name : {"data parallel", "ZeRO-1 or ZeRO-2", "ZeRO-3"})
      EXPECT_EQ(shape(name), std::pair(false, false)) << name;
    EXPECT_EQ(shape("tensor parallel"), std::pair(false, true));
    EXPECT_EQ(shape("pipeline"), std::pair(true, false));
    EXPECT_EQ(shape("pipeline and tensor parallel"), std::pair(true, true));
  }
}

TEST(Explain, SaysWhatAPlanLacksOfTheMemory) {
  const Profile profile = slow_links(1e6);
  const SearchQuestion roomy = question_of(4);
  const Explained all = explained(profile, roomy);
  const double replicated = all.of("data parallel").plan->most_memory();
  const double sharded = all.of("ZeRO-3").plan->most_memory();
  ASSERT_LT(sharded, replicated);
  const Explained tight = explained(profile, question_of(4, sharded * 1.001));
  const Alternative& found = tight.of("data parallel");
  EXPECT_FALSE(found.fits());
  EXPECT_NEAR(found.missing, found.plan->most_memory() - sharded * 1.001, 1);
  EXPECT_GT(found.missing, 0);
  EXPECT_TRUE(
      found.reason.starts_with(concat("needs ", human_bytes(found.plan->most_memory()), " of a rank, ",
                                      human_bytes(found.missing), " more than there is")))
      << found.reason;
  EXPECT_TRUE(tight.of("ZeRO-3").fits());
}

TEST(Explain, KindsThatAreImpossibleSayWhy) {
  const Explained one = explained(slow_links(1e6), question_of(1));
  EXPECT_EQ(one.of("ZeRO-3").reason, "one rank has no other rank to share with");
  EXPECT_EQ(explained(slow_links(1e6), question_of(2)).of("pipeline and tensor parallel").reason,
            "it needs at least 4 ranks, 2 stages of 2");
  Profile whole = slow_links(1e6);
  std::erase_if(whole.units, [](const UnitTimes& unit) { return unit.tensor > 1; });
  EXPECT_EQ(explained(whole, question_of(4)).of("tensor parallel").reason,
            "the profile has no times of units that ranks compute together");
}

TEST(Explain, VariationsPredictTheWinnerAndSearchAnew) {
  const Profile profile = slow_links(1e6);
  const Explained got = explained(profile, question_of(4));
  const FoundPlan& winner = got.found.best.front();
  ASSERT_EQ(got.explanation.variations.size(), 4U);
  const double factors[] = {0.5, 2};
  for (size_t i = 0; i < 2; ++i) {
    const Variation& one = got.explanation.variations[i];
    const Profile changed = with_bandwidth(profile, factors[i]);
    ASSERT_TRUE(one.kept_seconds && one.best);
    EXPECT_NEAR(*one.kept_seconds, predict_step(changed, winner.question).seconds, 1e-12);
    EXPECT_NEAR(one.best->time.seconds, predict_step(changed, one.best->question).seconds, 1e-12);
    EXPECT_LE(one.best->time.seconds, *one.kept_seconds);
    EXPECT_EQ(one.is_other, one.best->question.plan != winner.question.plan);
  }
  EXPECT_GT(*got.explanation.variations[0].kept_seconds, winner.time.seconds);
  EXPECT_EQ(*got.explanation.variations[3].kept_seconds, winner.time.seconds);
}

TEST(Explain, LessMemoryThanTheWinnerNeedsGivesAnotherPlan) {
  Profile profile = slow_links(1e9);
  arch::VitConfig wide = vit(4);
  wide.width = 512;
  wide.mlp_width = 2048;
  profile.model = wide;
  const double needed = explained(profile, question_of(4)).found.best.front().most_memory();
  const Explained got = explained(profile, question_of(4, needed * 1.01));
  const Variation& less = got.explanation.variations[2];
  EXPECT_FALSE(less.kept_seconds);
  ASSERT_TRUE(less.best);
  EXPECT_TRUE(less.is_other);
  EXPECT_LE(less.best->most_memory(), needed * 1.01 * 0.75);
}

TEST(Explain, ImagesPerRankHourFollowFromTheStep) {
  const Explained got = explained(slow_links(1e6), question_of(4));
  ASSERT_EQ(got.explanation.counts.size(), 3U);
  EXPECT_EQ(got.explanation.base_ranks, 4);
  for (const RankCount& count : got.explanation.counts) {
    ASSERT_TRUE(count.best) << count.ranks;
    const double images = 8 / count.best->time.seconds;
    EXPECT_NEAR(count.images_per_second, images, 1e-9);
    EXPECT_NEAR(count.images_per_rank_hour, 3600 * images / static_cast<double>(count.ranks), 1e-6);
  }
  // One rank: 8 images of 3 x 4.2 s, without messages.
  EXPECT_NEAR(got.explanation.counts[0].best->time.seconds, 8 * 3 * 4.2, 1e-9);
  EXPECT_EQ(got.explanation.counts[2].efficiency, 1);
  EXPECT_NEAR(got.explanation.counts[0].efficiency,
              got.explanation.counts[0].images_per_rank_hour / got.explanation.counts[2].images_per_rank_hour,
              1e-12);
}

TEST(Explain, NumbersOfRanksThatDoNotDivideAreSkipped) {
  SearchQuestion question = question_of(4);
  question.micro_batches = 1;
  question.images_of_rank = 2;
  const Explained got = explained(slow_links(1e6), question);
  EXPECT_FALSE(got.explanation.counts[0].best);
  EXPECT_EQ(got.explanation.counts[0].reason,
            "the batch of 8 images, with what the recipe fixes, cannot be divided");
  EXPECT_TRUE(got.explanation.counts[2].best);
}

}  // namespace
}  // namespace tessera::planner
