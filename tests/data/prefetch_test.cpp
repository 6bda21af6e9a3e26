// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/prefetch.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>

#include "tessera/base/random.h"
#include "tests/error_text.h"

namespace tessera::data {
namespace {

/// Batch i holds `size` labels i * 100 + sample; some parts fail or dawdle.
class Numbers : public BatchMaker {
 public:
  bool start(int64_t index, Batch* batch) const override {
    if (index >= batches) return false;
    if (index == fails_to_start) throw UserError("start failed");
    batch->size = size;
    batch->labels.resize(static_cast<size_t>(size));
    ++started;
    return true;
  }
  void fill(int64_t index, SampleRange part, const std::atomic<bool>& stop, Batch* batch) const override {
    for (int64_t i = part.first; i < part.last && !stop; ++i) {
      if (slow)
        std::this_thread::sleep_for(
            std::chrono::microseconds(random_below(1, static_cast<uint64_t>(index * 100 + i), 300)));
      if (index == fails && i >= fails_from) throw UserError("sample " + std::to_string(i));
      batch->labels[static_cast<size_t>(i)] = index * 100 + i;
    }
  }

  int64_t size = 7, batches = 1'000'000, fails = -1, fails_from = 0, fails_to_start = -1;
  bool slow = false;
  mutable std::atomic<int64_t> started = 0;
};

TEST(Prefetch, InOrderWithAnyWorkersDepthAndParts) {
  Numbers numbers;
  numbers.slow = true;
  for (const int64_t workers : {0, 1, 3}) {
    for (const int64_t ahead : {1, 4}) {
      for (const int64_t part : {1, 3, 100}) {
        Prefetcher prefetcher(numbers, {5, workers, ahead, part});
        for (int64_t index = 5; index < 12; ++index) {
          Batch batch;
          ASSERT_TRUE(prefetcher.next(&batch));
          ASSERT_EQ(batch.size, 7);
          for (int64_t i = 0; i < 7; ++i) ASSERT_EQ(batch.labels[static_cast<size_t>(i)], index * 100 + i);
        }
      }
    }
  }
}

/// Batch 2 hangs until it is let go.
class Hangs : public Numbers {
 public:
  void fill(int64_t index, SampleRange part, const std::atomic<bool>& stop, Batch* batch) const override {
    while (index == 2 && hangs) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    Numbers::fill(index, part, stop, batch);
  }
  mutable std::atomic<bool> hangs = true;
};

/// Also after a failed ASSERT: a destructor would wait for good.
struct LetsGo {
  const Hangs& numbers;
  ~LetsGo() { numbers.hangs = false; }
};

TEST(Prefetch, AStopEndsTheWaitForWhatDoesNotCome) {
  using Seconds = std::chrono::duration<double>;
  Hangs numbers;
  std::atomic<int> asked = 0;
  std::atomic<bool> stop = false;
  PrefetchOptions options{.workers = 2, .ahead = 4, .part_samples = 3};
  options.give_up = [&] {
    ++asked;
    return stop.load();
  };
  options.patience = 0.3;
  Prefetcher prefetcher(numbers, options);
  const LetsGo lets_go{numbers};
  Batch batch;
  stop = true;  // whoever does not wait does not give up
  for (int64_t index = 0; index < 2; ++index) {
    ASSERT_TRUE(prefetcher.next(&batch));
    EXPECT_FALSE(batch.given_up);
    EXPECT_EQ(batch.labels[0], index * 100);
  }
  const auto start = std::chrono::steady_clock::now();
  ASSERT_TRUE(prefetcher.next(&batch));
  EXPECT_TRUE(batch.given_up);
  EXPECT_EQ(batch.size, 0);
  EXPECT_GE(Seconds(std::chrono::steady_clock::now() - start).count(), 0.3);
  EXPECT_GE(asked, 2);
  EXPECT_FALSE(prefetcher.close(0.05)) << "two workers are in it";
}

TEST(Prefetch, WhatComesAfterAllIsNotLost) {
  Hangs numbers;
  PrefetchOptions options{.workers = 2, .ahead = 4, .part_samples = 3};
  options.give_up = [] { return true; };
  options.patience = 0;
  Prefetcher prefetcher(numbers, options);
  const LetsGo lets_go{numbers};
  Batch batch;
  do {
    ASSERT_TRUE(prefetcher.next(&batch));
  } while (batch.given_up || batch.labels[0] < 100);
  ASSERT_TRUE(prefetcher.next(&batch));
  ASSERT_TRUE(batch.given_up);
  numbers.hangs = false;
  do {
    ASSERT_TRUE(prefetcher.next(&batch));
  } while (batch.given_up);
  EXPECT_EQ(batch.labels[0], 200);
  EXPECT_TRUE(prefetcher.close(10));
}

TEST(Prefetch, EndsAndStaysAtTheEnd) {
  for (const int64_t batches : {0, 1, 5}) {
    for (const int64_t workers : {0, 1, 3}) {
      Numbers numbers;
      numbers.batches = batches;
      Prefetcher prefetcher(numbers, {0, workers, 2, 2});
      Batch batch;
      for (int64_t i = 0; i < batches; ++i) ASSERT_TRUE(prefetcher.next(&batch));
      EXPECT_FALSE(prefetcher.next(&batch));
      EXPECT_FALSE(prefetcher.next(&batch));
    }
  }
}

TEST(Prefetch, KeepsToItsBound) {
  Numbers numbers;
  Prefetcher prefetcher(numbers, {0, 2, 3, 100});
  Batch batch;
  ASSERT_TRUE(prefetcher.next(&batch));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_LE(numbers.started, 4);
  EXPECT_GE(numbers.started, 3);
}

TEST(Prefetch, AnErrorComesInItsTurnAndStays) {
  for (const int64_t workers : {0, 1, 3}) {
    Numbers numbers;
    numbers.slow = true;
    numbers.fails = 2;
    numbers.fails_from = 3;  // samples 3, 4, 5 and 6 all fail, in parts of their own: the first one is told
    Prefetcher prefetcher(numbers, {0, workers, 4, 1});
    Batch batch;
    ASSERT_TRUE(prefetcher.next(&batch));
    ASSERT_TRUE(prefetcher.next(&batch));
    EXPECT_EQ(error_text([&] { prefetcher.next(&batch); }), "sample 3");
    EXPECT_EQ(error_text([&] { prefetcher.next(&batch); }), "sample 3");
  }
}

TEST(Prefetch, AnErrorOfTheStart) {
  for (const int64_t workers : {0, 2}) {
    Numbers numbers;
    numbers.fails_to_start = 1;
    Prefetcher prefetcher(numbers, {0, workers, 4, 1});
    Batch batch;
    ASSERT_TRUE(prefetcher.next(&batch));
    EXPECT_EQ(error_text([&] { prefetcher.next(&batch); }), "start failed");
  }
}

TEST(Prefetch, EndsAtAnyMoment) {
  Numbers numbers;
  numbers.slow = true;
  for (uint64_t trial = 0; trial < 60; ++trial) {
    auto prefetcher = std::make_unique<Prefetcher>(numbers, PrefetchOptions{0, 3, 2, 2});
    Batch batch;
    for (uint64_t i = 0; i < random_below(2, trial, 3); ++i) prefetcher->next(&batch);
    std::this_thread::sleep_for(std::chrono::microseconds(random_below(3, trial, 2000)));
    prefetcher.reset();
  }
}

TEST(Prefetch, WaitsAreTakenOnce) {
  Numbers numbers;
  numbers.slow = true;
  Prefetcher prefetcher(numbers, {0, 1, 1, 1});
  Batch batch;
  prefetcher.next(&batch);
  EXPECT_GT(prefetcher.take_wait_seconds(), 0.0);
  EXPECT_EQ(prefetcher.take_wait_seconds(), 0.0);
}

}  // namespace
}  // namespace tessera::data
