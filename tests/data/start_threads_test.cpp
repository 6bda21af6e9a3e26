// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/start_threads.h"

#include <gtest/gtest.h>

#include <atomic>

#include "tessera/data/in_parallel.h"
#include "tessera/data/prefetch.h"
#include "tests/few_threads.h"

namespace tessera::data {
namespace {

TEST(StartThreads, AllOfThem) {
  std::atomic<int> ran = 0;
  std::vector<std::thread> threads;
  start_threads(
      7, [&] { ++ran; }, [] { FAIL(); }, threads);
  ASSERT_EQ(threads.size(), 7U);
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(ran, 7);
}

/// Batches without end.
class Endless : public BatchMaker {
 public:
  bool start(int64_t, Batch* batch) const override {
    batch->size = 1;
    return true;
  }
  void fill(int64_t, SampleRange, const std::atomic<bool>&, Batch*) const override {}
};

TEST(StartThreads, WhereTheSystemRefusesOneTheOthersEnd) {
  if (testing::kSanitized) GTEST_SKIP() << "a sanitizer needs address space of its own";
  const std::string prefetcher = testing::error_with_few_threads([] {
    const Endless batches;
    Prefetcher(batches, {.first = 0, .workers = 5000, .ahead = 2});
  });
  EXPECT_TRUE(prefetcher.starts_with("[data.threads] the system started only ") &&
              prefetcher.ends_with("; ask for fewer, or raise its limits"))
      << prefetcher;
}

TEST(StartThreads, WorkInParallelIsDoneByThoseThatStart) {
  if (testing::kSanitized) GTEST_SKIP() << "a sanitizer needs address space of its own";
  EXPECT_EQ(testing::error_with_few_threads([] {
              std::atomic<int> done = 0;
              in_parallel(5000, 5000, [&](size_t) { ++done; });
              if (done != 5000) throw UserError("not all");
            }),
            "no error");
}

}  // namespace
}  // namespace tessera::data
