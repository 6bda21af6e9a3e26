// SPDX-License-Identifier: Apache-2.0
// The training loader at every order and layout, with broken samples that ranks judge together, and its
// memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>

#include "tests/data/pixel_source.h"
#include "tests/error_text.h"
#include "tests/process_memory.h"

namespace tessera::data {
namespace {

/// The samples of a step, from all ranks of a layout that starts there.
std::vector<uint64_t> step_of(const Source& source, const OrderOptions& order, int64_t world,
                              int64_t accumulation, int64_t step) {
  std::vector<uint64_t> samples;
  for (int64_t rank = 0; rank < world; ++rank) {
    LoaderOptions options = share(rank, world, 24, accumulation, rank % 2);
    options.order = order;
    TrainLoader loader(source, one_pixel(), options, step);
    for (int64_t a = 0; a < accumulation; ++a) {
      const Batch batch = loader.next();
      samples.insert(samples.end(), batch.samples.begin(), batch.samples.end());
    }
  }
  return samples;
}

// A run that continues in the middle of an epoch, on other ranks, sees what it would have seen.
TEST(TrainLoader, EveryOrderContinuesAnywhereOnAnyRanks) {
  const Pixels source(101, {}, {0, 10, 11, 40, 77});
  std::vector<OrderOptions> orders(6);
  orders[0].remainder = Remainder::kKeep;
  orders[1].remainder = Remainder::kCarry;
  orders[2].repeats = 3;
  orders[3].mix = {{20, 2}, {81, 1}};
  orders[4].order = Order::kShards;
  orders[4].mixed_shards = 2;
  orders[5] = {Order::kShards, 2, Remainder::kCarry, 2, {{40, 1}, {61, 3}}};
  for (const OrderOptions& order : orders) {
    for (const int64_t step : {0, 3, 4, 5, 1'000'003}) {
      const auto expected = step_of(source, order, 1, 1, step);
      EXPECT_EQ(step_of(source, order, 2, 3, step), expected);
      EXPECT_EQ(step_of(source, order, 3, 1, step), expected);
      EXPECT_EQ(step_of(source, order, 4, 2, step), expected);
    }
  }
}

/// Samples of the steps [from, to) of a loader on one rank.
std::vector<uint64_t> samples_of(const Source& source, const LoaderOptions& options, int64_t from,
                                 int64_t to) {
  TrainLoader loader(source, one_pixel(), options, from);
  std::vector<uint64_t> samples;
  for (int64_t step = from; step < to; ++step) {
    const Batch batch = loader.next();
    samples.insert(samples.end(), batch.samples.begin(), batch.samples.end());
  }
  return samples;
}

// 100 samples an epoch. 7 steps of 12 are 84 of the first epoch; then steps of 8, of 5 and of 16.
TEST(TrainLoader, ANewBatchGoesOnAtTheNextSampleOfTheEpoch) {
  const Pixels source(100);
  for (const Remainder remainder : {Remainder::kDrop, Remainder::kKeep, Remainder::kCarry}) {
    SCOPED_TRACE(static_cast<int>(remainder));
    LoaderOptions options = share(0, 1, 12, 1, 0);
    options.order.remainder = remainder;
    std::vector<uint64_t> seen = samples_of(source, options, 0, 7);
    for (const auto& [batch, first, steps] : std::vector<std::tuple<int64_t, int64_t, int64_t>>{
             {8, 7, 1}, {8, 8, 1}, {5, 9, 20}, {16, 29, 5}, {20, 34, 1}}) {
      // What a checkpoint saves before the change of the batch.
      options.start = {first, TrainLoader(source, one_pixel(), options, first).position(first)};
      options.batch = batch;
      const auto more = samples_of(source, options, first, first + steps);
      seen.insert(seen.end(), more.begin(), more.end());
    }
    ASSERT_GE(seen.size(), 300U);
    for (size_t epoch = 0; epoch < 3; ++epoch) {
      const auto begin = seen.begin() + static_cast<std::ptrdiff_t>(100 * epoch);
      EXPECT_EQ(std::set<uint64_t>(begin, begin + 100).size(), 100U) << "epoch " << epoch;
    }
  }
}

// 84 of 105 samples are done: 21 are left, steps of 10, 10 and 1, although remainders are dropped; later
// epochs are 10 whole steps.
TEST(TrainLoader, ANewBatchLeavesOutNoSampleOfItsFirstEpoch) {
  const Pixels source(105);
  LoaderOptions options = share(0, 1, 12, 1, 0);
  std::vector<uint64_t> seen = samples_of(source, options, 0, 7);
  options.batch = 10;
  options.start = {7, {0, 84}};
  const auto rest = samples_of(source, options, 7, 10);
  EXPECT_EQ(rest.size(), 21U) << "10, 10 and 1";
  seen.insert(seen.end(), rest.begin(), rest.end());
  EXPECT_EQ(std::set<uint64_t>(seen.begin(), seen.end()).size(), 105U);
  const TrainLoader loader(source, one_pixel(), options, 7);
  EXPECT_EQ(loader.position(9), (StreamPosition{0, 104}));
  EXPECT_EQ(loader.position(10), (StreamPosition{1, 0}));
  EXPECT_EQ(loader.position(20), (StreamPosition{2, 0})) << "5 of 105 are dropped as usual";
  EXPECT_EQ(step_of_position({0, 84}, 105, 10, Remainder::kDrop), 7);
  EXPECT_EQ(samples_of(source, options, 9, 11).size(), 11U) << "resumed once more before the short step";
}

TEST(TrainLoader, TheSameBatchFollowsTheSameOrderFromAnyStart) {
  const Pixels source(101, {}, {0, 10, 11, 40, 77});
  std::vector<OrderOptions> orders(5);
  orders[1].remainder = Remainder::kKeep;
  orders[2].remainder = Remainder::kCarry;
  orders[3].repeats = 3;
  orders[4] = {Order::kShards, 2, Remainder::kCarry, 2, {{40, 1}, {61, 3}}};
  for (const OrderOptions& order : orders) {
    LoaderOptions options = share(0, 1, 24, 1, 0);
    options.order = order;
    for (const int64_t start : {0, 3, 4, 5, 13}) {
      const auto expected = samples_of(source, options, start, start + 9);
      LoaderOptions resumed = options;
      resumed.start = {start, TrainLoader(source, one_pixel(), options, 0).position(start)};
      EXPECT_EQ(resumed.start.position, position_of_step(start, 101, 24, order.remainder));
      EXPECT_EQ(step_of_position(resumed.start.position, 101, 24, order.remainder), start);
      EXPECT_EQ(samples_of(source, resumed, start, start + 9), expected);
    }
  }
}

// With a remainder that is kept, shares of the last step are short or empty; together the ranks have every
// sample of every epoch once, and all know how many the step has.
TEST(TrainLoader, AShortLastStepAtAnyLayout) {
  const Pixels source(101);
  constexpr int64_t kBatch = 24;  // 4 whole steps and one of 5 samples
  // Of these 5, those of each rank, by micro-batch.
  using Sizes = std::vector<std::vector<int64_t>>;
  for (const auto& [world, accumulation, workers, of_five] :
       std::vector<std::tuple<int64_t, int64_t, int64_t, Sizes>>{
           {1, 1, 0, {{5}}},
           {2, 2, 2, {{3, 2}, {0, 0}}},
           {4, 3, 1, {{2, 1, 1, 1}, {0, 0, 0, 0}, {0, 0, 0, 0}}},
           {6, 1, 0, {{1, 1, 1, 1, 1, 0}}}}) {
    std::vector<int> seen(101);
    for (int64_t rank = 0; rank < world; ++rank) {
      LoaderOptions options = share(rank, world, kBatch, accumulation, workers);
      options.order.remainder = Remainder::kKeep;
      TrainLoader loader(source, one_pixel(), options, 5);  // the second epoch
      for (int64_t step = 0; step < 5; ++step) {
        for (int64_t a = 0; a < accumulation; ++a) {
          const Batch batch = loader.next();
          EXPECT_EQ(batch.step_size, step < 4 ? kBatch : 5);
          EXPECT_EQ(batch.size, step < 4 ? kBatch / (world * accumulation)
                                         : of_five[static_cast<size_t>(a)][static_cast<size_t>(rank)]);
          expect_pixels(batch);
          for (const uint64_t sample : batch.samples) ++seen[sample];
        }
      }
    }
    for (const int count : seen) EXPECT_EQ(count, 1);
  }
}

// The copies of a sample get random draws of their own, and names that tell them apart.
TEST(TrainLoader, RepeatedSamplesAreAugmentedApart) {
  const auto source = open_source("fake:40", "train", {16, 3, 4});
  TransformOptions transform;
  transform.image_size = 8;
  LoaderOptions options = share(0, 1, 12, 1, 2);
  options.order.repeats = 3;
  TrainLoader loader(*source, transform, options, 0);
  const Batch batch = loader.next();
  const auto image = [&](size_t i) {
    const size_t size = 3 * 8 * 8;
    return std::vector<float>(batch.images.begin() + static_cast<std::ptrdiff_t>(i * size),
                              batch.images.begin() + static_cast<std::ptrdiff_t>((i + 1) * size));
  };
  const std::set<uint64_t> names(batch.samples.begin(), batch.samples.end());
  EXPECT_EQ(names.size(), 12U);
  for (size_t i = 0; i < 12; i += 3) {
    EXPECT_EQ(batch.samples[i] % 40, batch.samples[i + 1] % 40);
    EXPECT_EQ(batch.samples[i] + 80, batch.samples[i + 2]);
    EXPECT_EQ(batch.labels[i], batch.labels[i + 2]);
    EXPECT_NE(image(i), image(i + 1));
    EXPECT_NE(image(i + 1), image(i + 2));
  }
}

/// What ranks do that decide together: report, gather, merge.
void meet(const std::vector<std::unique_ptr<TrainLoader>>& ranks) {
  std::vector<std::string> reports;
  for (const auto& rank : ranks) reports.push_back(rank->report_broken());
  std::set<std::string> said;
  for (const auto& rank : ranks) said.insert(error_text([&] { rank->merge_broken(reports); }));
  ASSERT_EQ(said.size(), 1U);
  if (*said.begin() != "no error") throw UserError(*said.begin());
}

std::vector<std::unique_ptr<TrainLoader>> ranks_that_decide(const Source& source, int64_t world,
                                                            int64_t workers, double limit) {
  std::vector<std::unique_ptr<TrainLoader>> ranks;
  for (int64_t rank = 0; rank < world; ++rank) {
    LoaderOptions options = share(rank, world, 24, 1, workers);
    options.ranks_decide = true;
    options.error_limit = limit;
    ranks.push_back(std::make_unique<TrainLoader>(source, one_pixel(), options, 0));
  }
  return ranks;
}

// A rank that finds a sample in one epoch and another that finds it in the next count it once, and the limit
// is that of the whole source: no rank of three has more than two of the four, together they have too many.
TEST(TrainLoader, RanksCountBrokenSamplesTogether) {
  const Pixels source(96, {7, 21, 50, 80});
  for (const int64_t workers : {0, 2}) {
    const auto ranks = ranks_that_decide(source, 3, workers, 0.05);
    for (int step = 0; step < 12; ++step) {
      for (const auto& rank : ranks) expect_pixels(rank->next());
      meet(ranks);
    }
    for (const auto& rank : ranks) {
      EXPECT_EQ(rank->agreed_broken(), 4);
      EXPECT_EQ(rank->unreported_broken(), 0);
    }
    const auto strict = ranks_that_decide(source, 3, workers, 0.04);
    const std::string text = error_text([&] {
      for (int step = 0; step < 4; ++step) {
        for (const auto& rank : strict) rank->next();
        meet(strict);
      }
    });
    EXPECT_TRUE(text.starts_with(
        "[data.loader] 4 of 96 samples are broken (the last: [test.load] no pixel in pixel-"))
        << text;
  }
}

// A disk that went away ends the run in the step under way, without a search through all the samples.
TEST(TrainLoader, RanksWithNothingToReadEndTogether) {
  std::set<int64_t> all;
  for (int64_t i = 0; i < 9600; ++i) all.insert(i);
  const Pixels source(9600, all);
  const auto ranks = ranks_that_decide(source, 2, 0, 0.01);
  for (const auto& rank : ranks) {
    rank->next();
    EXPECT_GT(rank->unreported_broken(), 0);
    EXPECT_LT(rank->broken_samples(), 200);
  }
  EXPECT_NE(error_text([&] { meet(ranks); }), "no error");
}

// Memory is that of the queue, whatever the number of samples: neither the source's million nor those seen.
TEST(TrainLoader, MemoryStaysTheSameOverAMillionSamples) {
  if (testing::kSanitized) GTEST_SKIP() << "memory says nothing under a sanitizer";
  const Pixels source(1'000'000);
  LoaderOptions options = share(0, 1, 1000, 1, 2);
  TrainLoader loader(source, one_pixel(), options, 0);
  for (int step = 0; step < 50; ++step) loader.next();
  const int64_t before = testing::status_bytes("VmRSS");
  for (int step = 0; step < 1000; ++step) loader.next();
  EXPECT_LT(testing::status_bytes("VmRSS") - before, 2 << 20);  // 2 bytes a sample would show
}

}  // namespace
}  // namespace tessera::data
