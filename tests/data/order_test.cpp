// SPDX-License-Identifier: Apache-2.0
// Which samples a step has: remainder, repeats, mixes, shards.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "tessera/data/sample_order.h"
#include "tests/data/pixel_source.h"
#include "tests/error_text.h"

namespace tessera::data {
namespace {

std::vector<int64_t> samples_of(const SampleOrder& order, int64_t first_step, int64_t steps) {
  std::vector<int64_t> samples;
  for (int64_t step = first_step; step < first_step + steps; ++step) {
    for (int64_t i = 0; i < order.step_size(step); ++i) samples.push_back(order.at(step, i).sample);
  }
  return samples;
}

std::map<int64_t, int> counts_of(const std::vector<int64_t>& samples) {
  std::map<int64_t, int> counts;
  for (const int64_t sample : samples) ++counts[sample];
  return counts;
}

OrderOptions with(Remainder remainder) {
  OrderOptions options;
  options.remainder = remainder;
  return options;
}

TEST(Order, StepsPerEpochByWhatBecomesOfTheRemainder) {
  EXPECT_EQ(steps_per_epoch(1000, 128, Remainder::kDrop), 7);
  EXPECT_EQ(steps_per_epoch(1000, 128, Remainder::kKeep), 8);
  EXPECT_EQ(steps_per_epoch(1024, 128, Remainder::kKeep), 8);
  EXPECT_EQ(steps_per_epoch(1000, 128, Remainder::kCarry), 7.8125);
  EXPECT_EQ(steps_per_epoch(5, 128, Remainder::kKeep), 1);
}

TEST(Order, ADroppedRemainderIsAnotherOneEachEpoch) {
  const Pixels source(103);
  const SampleOrder order(source, 5, 20, with(Remainder::kDrop));
  std::set<int64_t> left_out;
  for (int64_t epoch = 0; epoch < 40; ++epoch) {
    const auto counts = counts_of(samples_of(order, epoch * 5, 5));
    EXPECT_EQ(counts.size(), 100U);
    for (int64_t i = 0; i < 103; ++i) {
      if (!counts.contains(i)) left_out.insert(i);
    }
  }
  EXPECT_GT(left_out.size(), 60U);  // of 120 draws, about 71 different ones
}

TEST(Order, AKeptRemainderIsAShortStep) {
  const Pixels source(103);
  const SampleOrder order(source, 5, 20, with(Remainder::kKeep));
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    EXPECT_EQ(order.step_size(epoch * 6 + 4), 20);
    EXPECT_EQ(order.step_size(epoch * 6 + 5), 3);
    EXPECT_EQ(counts_of(samples_of(order, epoch * 6, 6)).size(), 103U);
  }
  EXPECT_EQ(order.epoch(5), 0);
  EXPECT_EQ(order.epoch(6), 1);
  const SampleOrder small(Pixels(7), 5, 20, with(Remainder::kKeep));
  EXPECT_EQ(small.step_size(9), 7);
}

TEST(Order, ACarriedRemainderGoesToTheNextEpoch) {
  const Pixels source(103);
  const SampleOrder order(source, 5, 20, with(Remainder::kCarry));
  const auto stream = samples_of(order, 0, 103);  // 20 epochs
  ASSERT_EQ(stream.size(), 2060U);
  for (auto epoch = stream.begin(); epoch != stream.end(); epoch += 103) {
    EXPECT_EQ(counts_of({epoch, epoch + 103}).size(), 103U);
  }
  EXPECT_EQ(order.epoch(5), 0);
  EXPECT_EQ(order.epoch(6), 1);
  const SampleOrder small(Pixels(7), 5, 20, with(Remainder::kCarry));
  for (const auto& [sample, count] : counts_of(samples_of(small, 0, 7))) EXPECT_EQ(count, 20);
}

// DeiT: an epoch stays as long, and shows a third of the samples three times.
TEST(Order, RepeatedSamples) {
  const Pixels source(103);
  OrderOptions options;
  options.repeats = 3;
  const SampleOrder order(source, 5, 20, options);
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    const auto counts = counts_of(samples_of(order, epoch * 5, 5));
    EXPECT_EQ(counts.size(), 34U);
    EXPECT_EQ(std::count_if(counts.begin(), counts.end(), [](const auto& c) { return c.second == 3; }), 33);
  }
  // No appearance of a sample has the augmentation of another.
  std::set<std::pair<int64_t, int64_t>> appearances;
  for (int64_t step = 0; step < 30; ++step) {
    for (int64_t i = 0; i < 20; ++i) {
      const Draw draw = order.at(step, i);
      EXPECT_EQ(draw.copy, (step % 5 * 20 + i) % 3);
      EXPECT_TRUE(appearances.emplace(draw.sample, draw.appearance).second);
    }
  }
}

// Weights 3 : 1 whatever the sizes: exactly so over each 10,000, closely in between; each source is gone
// through once before any of it comes again; any step is found alone.
TEST(Order, AMixKeepsItsWeights) {
  const Pixels source(1000);
  OrderOptions options;
  options.mix = {{100, 3}, {900, 1}};
  const SampleOrder order(source, 5, 50, options);
  const auto stream = samples_of(order, 0, 400);
  const auto first = [](int64_t sample) { return sample < 100; };
  for (int64_t block = 0; block < 2; ++block) {
    const auto begin = stream.begin() + block * 10'000;
    EXPECT_EQ(std::count_if(begin, begin + 10'000, first), 7500);
  }
  for (auto at = stream.begin(); at != stream.end(); at += 1000) {
    EXPECT_NEAR(std::count_if(at, at + 1000, first), 750, 5 * 14);
  }
  // 15,000 draws are 150 passes over the first source, 5,000 are 5 whole passes and 500 of the second.
  for (const auto& [sample, count] : counts_of(stream)) {
    const int whole = sample < 100 ? 150 : 5;
    EXPECT_GE(count, whole);
    EXPECT_LE(count, sample < 100 ? whole : whole + 1);
  }
  std::set<std::pair<int64_t, int64_t>> appearances;
  for (int64_t step = 0; step < 400; ++step) {
    for (int64_t i = 0; i < 50; ++i) {
      const Draw draw = order.at(step, i);
      EXPECT_TRUE(appearances.emplace(draw.sample, draw.appearance).second);
    }
  }
  const SampleOrder again(source, 5, 50, options);
  EXPECT_EQ(samples_of(again, 123'456'789, 2), samples_of(order, 123'456'789, 2));
}

TEST(Order, AMixOfThreeInPlainProportion) {
  const Pixels source(60);
  OrderOptions options;
  options.remainder = Remainder::kCarry;
  options.mix = {{10, 1}, {20, 1}, {30, 1}};  // thirds of 10,000: 3,334, 3,333, 3,333
  const SampleOrder order(source, 5, 50, options);
  const auto stream = samples_of(order, 0, 200);
  const auto in_first = [](int64_t sample) { return sample < 10; };
  const auto in_last = [](int64_t sample) { return sample >= 30; };
  EXPECT_EQ(std::count_if(stream.begin(), stream.end(), in_first), 3334);
  EXPECT_EQ(std::count_if(stream.begin(), stream.end(), in_last), 3333);
}

/// Shards of 1, 2, 3, ... samples.
Pixels rising_shards(int64_t count) {
  std::vector<int64_t> starts;
  int64_t samples = 0;
  for (int64_t i = 1; i <= count; samples += i++) starts.push_back(samples);
  return Pixels(samples, {}, starts);
}

TEST(Order, ShardsAFewAtATime) {
  const Pixels source = rising_shards(40);  // 820 samples
  const auto starts = source.shard_starts();
  OrderOptions options;
  options.order = Order::kShards;
  options.mixed_shards = 4;
  options.remainder = Remainder::kCarry;
  const SampleOrder order(source, 5, 20, options);
  const auto stream = samples_of(order, 0, 82);  // two epochs
  const auto shard_of = [&](int64_t sample) {
    return std::upper_bound(starts.begin(), starts.end(), sample) - starts.begin() - 1;
  };
  for (auto epoch = stream.begin(); epoch != stream.end(); epoch += 820) {
    EXPECT_EQ(counts_of({epoch, epoch + 820}).size(), 820U);
    // A group of four shards is used up before the next one begins.
    std::set<int64_t> group, done;
    int64_t left = 0;
    for (auto at = epoch; at != epoch + 820; ++at) {
      const int64_t shard = shard_of(*at);
      EXPECT_FALSE(done.contains(shard));
      if (group.insert(shard).second) left += shard + 1;
      EXPECT_LE(group.size(), 4U);
      if (group.size() == 4 && --left == 0) {
        done.insert(group.begin(), group.end());
        group.clear();
      } else if (group.size() < 4) {
        --left;
      }
    }
    EXPECT_EQ(done.size(), 40U);
  }
  EXPECT_FALSE(std::is_sorted(stream.begin(), stream.begin() + 20));
  const std::vector<int64_t> first(stream.begin(), stream.begin() + 820);
  EXPECT_NE(first, std::vector<int64_t>(stream.begin() + 820, stream.end()));
  // Alone, without what came before, and backwards.
  const SampleOrder again(source, 5, 20, options);
  for (const int64_t step : {81, 3, 40, 41})
    EXPECT_EQ(samples_of(again, step, 1), samples_of(order, step, 1));
}

// Neighbours in one large file count as shards.
TEST(Order, ShardsOfASourceThatHasNone) {
  const Pixels source(5000);
  OrderOptions options;
  options.order = Order::kShards;
  options.mixed_shards = 1;
  options.remainder = Remainder::kKeep;
  const SampleOrder order(source, 5, 8, options);
  const auto stream = samples_of(order, 0, 625);
  EXPECT_EQ(counts_of(stream).size(), 5000U);
  const auto [low, high] = std::minmax_element(stream.begin(), stream.begin() + 904);  // 5000 % 1024
  EXPECT_LT(*high - *low, 2048);
}

TEST(Order, Sequential) {
  const Pixels source(100);
  OrderOptions options;
  options.order = Order::kSequential;
  const SampleOrder order(source, 5, 10, options);
  std::vector<int64_t> expected(100);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(samples_of(order, 10, 10), expected);
}

TEST(Order, Errors) {
  const auto error = [](auto change) {
    OrderOptions options;
    change(options);
    return error_text([&] { SampleOrder(Pixels(100), 1, 10, options); });
  };
  EXPECT_EQ(error([](auto& o) { o.repeats = 0; }),
            "[data.order] the number of copies of a sample is 0: expected at least 1");
  EXPECT_EQ(error([](auto& o) { o.mixed_shards = 0; }),
            "[data.order] data.mixed_shards is 0: expected at least 1");
  EXPECT_EQ(error([](auto& o) {
              o.mix = {{90, 1}, {10, 0}};
            }),
            "[data.order] data.mix_weights has the value 0: expected values above 0");
  EXPECT_EQ(error([](auto& o) {
              o.mix = {{90, 1e6}, {10, 1}};
            }),
            "[data.order] data.mix_weights has the value 1 of a sum of 1e+06: expected at least 1 / 10000 of "
            "the sum");
  EXPECT_EQ(error([](auto& o) {
              o.mix = {{100, 1}, {0, 1}};
            }),
            "[data.order] a source of the mix has no sample");
  EXPECT_EQ(error([](auto& o) {
              o.mix = {{90, 1}, {20, 1}};
            }),
            "[data.order] the parts of the mix have 110 samples: expected the 100 samples of the source");
  EXPECT_EQ(error_text([] { SampleOrder(Pixels(0), 1, 10, with(Remainder::kKeep)); }),
            "[data.loader] the source has no sample");
}

}  // namespace
}  // namespace tessera::data
