// SPDX-License-Identifier: Apache-2.0
#include "tessera/prepare/in_order.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>

#include "tests/few_threads.h"

namespace tessera::prepare {
namespace {

TEST(InOrder, ResultsComeInOrderForAnyNumberOfWorkers) {
  for (const int workers : {1, 2, 7}) {
    std::vector<int64_t> taken;
    InOrder<int64_t>::run(
        3, 500, workers,
        [](int64_t i) {
          if (i % 37 == 0) std::this_thread::sleep_for(std::chrono::microseconds(300));
          return 2 * i;
        },
        [&](int64_t i, int64_t value) {
          EXPECT_EQ(value, 2 * i);
          taken.push_back(i);
        });
    ASSERT_EQ(taken.size(), 497U);
    EXPECT_TRUE(std::is_sorted(taken.begin(), taken.end()));
  }
  InOrder<int>::run(
      5, 5, 4, [](int64_t) { return 0; }, [](int64_t, int) { FAIL(); });
}

TEST(InOrder, TheFirstErrorInOrderIsThrownAndNoMoreThanAWindowIsMade) {
  std::atomic<int64_t> made = 0;
  int64_t taken = 0;
  try {
    InOrder<int>::run(
        0, 10'000, 3,
        [&](int64_t i) {
          ++made;
          if (i == 20 || i == 22) throw std::runtime_error(std::to_string(i));
          return 0;
        },
        [&](int64_t, int) { ++taken; });
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "20");
  }
  EXPECT_EQ(taken, 20);
  EXPECT_LE(made.load(), 20 + 1 + 12);
}

TEST(InOrder, NoMoreThreadsThanValuesAndOneLineWhereTheSystemRefusesThem) {
  int64_t taken = 0;
  InOrder<int>::run(
      0, 3, 100'000'000, [](int64_t) { return 1; }, [&](int64_t, int value) { taken += value; });
  EXPECT_EQ(taken, 3);
  if (testing::kSanitized) GTEST_SKIP() << "a sanitizer needs address space of its own";
  const std::string error = testing::error_with_few_threads([] {
    InOrder<int>::run(
        0, 1'000'000, 5000, [](int64_t) { return 1; }, [](int64_t, int) {});
  });
  EXPECT_TRUE(error.starts_with("[data.threads] the system started only ")) << error;
}

TEST(InOrder, AnErrorOfTheTakerEndsIt) {
  EXPECT_THROW(InOrder<int>::run(
                   0, 100, 3, [](int64_t) { return 0; },
                   [](int64_t i, int) {
                     if (i == 5) throw std::runtime_error("full");
                   }),
               std::runtime_error);
}

}  // namespace
}  // namespace tessera::prepare
