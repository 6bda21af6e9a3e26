// SPDX-License-Identifier: Apache-2.0
// How the plug-in chooses an algorithm for a product, and which biases it copies, without a GPU.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "tessera/cuda/alignment.h"
#include "tessera/cuda/fastest.h"

namespace tessera::cuda {
namespace {

/// Durations of candidates in seconds, of the first and of the second measurement; no value: it does not run.
class Measured {
 public:
  explicit Measured(std::vector<std::vector<std::optional<double>>> seconds) : seconds_(std::move(seconds)) {
    runs.resize(seconds_.size());
  }
  std::optional<double> operator()(size_t i) {
    const auto& all = seconds_[i];
    return all[std::min(static_cast<size_t>(runs[i]++), all.size() - 1)];
  }
  std::vector<int> runs;  // measurements of each candidate

 private:
  std::vector<std::vector<std::optional<double>>> seconds_;
};

std::optional<size_t> fastest(Measured& measured) {
  return fastest_of(measured.runs.size(), [&](size_t i) { return measured(i); });
}

TEST(FastestOf, TakesTheSmallestDuration) {
  Measured measured({{3e-3}, {2e-3}, {1e-3}, {1.5e-3}});
  EXPECT_EQ(fastest(measured), 2U);
  EXPECT_EQ(measured.runs, (std::vector<int>{1, 1, 2, 1})) << "only candidates near the best run again";
}

TEST(FastestOf, KeepsTheFirstUnlessAnotherIsClearlyFaster) {
  Measured close({{1.00e-3}, {0.98e-3}});
  EXPECT_EQ(fastest(close), 0U);
  Measured clear({{1.00e-3}, {0.96e-3}});
  EXPECT_EQ(fastest(clear), 1U);
}

TEST(FastestOf, MeasuresAgainWhatRanOnASlowClock) {
  Measured measured({{1.2e-3, 0.8e-3}, {1.0e-3, 1.0e-3}});
  EXPECT_EQ(fastest(measured), 0U);
}

TEST(FastestOf, LeavesOutWhatDoesNotRun) {
  Measured first_fails({{std::nullopt}, {2e-3}, {1e-3}});
  EXPECT_EQ(fastest(first_fails), 2U);
  Measured second_fails_later({{2e-3}, {1e-3, std::nullopt}});
  EXPECT_EQ(fastest(second_fails_later), 1U);
  Measured all_fail({{std::nullopt}, {std::nullopt}});
  EXPECT_EQ(fastest(all_fail), std::nullopt);
}

/// Choices of algorithms "a", "b" and "c", of which "b" is the fastest, and what was asked of the caller.
struct Caller {
  FastestChoices<int, std::string> choices;
  std::vector<std::string> candidates = {"a", "b", "c"};
  int proposals = 0, measurements = 0;
  bool runs = true;

  std::string choose(int key, Timing timing) {
    return choices.choose(
        key, timing,
        [&] {
          ++proposals;
          return candidates;
        },
        [&](const std::string& candidate) -> std::optional<double> {
          ++measurements;
          if (!runs) return std::nullopt;
          return candidate == "b" ? 1.0 : 2.0;
        });
  }
};

TEST(FastestChoices, MeasuresOncePerKey) {
  Caller caller;
  EXPECT_EQ(caller.choose(1, Timing::kNow), "b");
  EXPECT_EQ(caller.measurements, 4) << "the best twice";
  EXPECT_EQ(caller.choose(1, Timing::kNow), "b");
  EXPECT_EQ(caller.proposals, 1);
  EXPECT_EQ(caller.measurements, 4);
  caller.choose(2, Timing::kNow);
  EXPECT_EQ(caller.measurements, 8);
}

TEST(FastestChoices, WhileCapturingNothingRunsAndNothingNewIsRemembered) {
  Caller caller;
  EXPECT_EQ(caller.choose(1, Timing::kLater), "a");
  EXPECT_EQ(caller.measurements, 0);
  EXPECT_EQ(caller.choose(1, Timing::kNow), "b");
  EXPECT_EQ(caller.choose(1, Timing::kLater), "b") << "what is known is used";
}

TEST(FastestChoices, SwitchedOffTakesTheFirstForGood) {
  Caller caller;
  EXPECT_EQ(caller.choose(1, Timing::kNever), "a");
  EXPECT_EQ(caller.choose(1, Timing::kNever), "a");
  EXPECT_EQ(caller.measurements, 0);
  EXPECT_EQ(caller.proposals, 1);
}

TEST(FastestChoices, OneCandidateIsNotMeasured) {
  Caller caller;
  caller.candidates = {"c"};
  EXPECT_EQ(caller.choose(1, Timing::kLater), "c");
  EXPECT_EQ(caller.choose(1, Timing::kNow), "c");
  EXPECT_EQ(caller.measurements, 0);
  EXPECT_EQ(caller.proposals, 1);
}

TEST(FastestChoices, MeasuresAgainAfterAllFailed) {
  Caller caller;
  caller.runs = false;  // for example: out of memory
  EXPECT_EQ(caller.choose(1, Timing::kNow), "a");
  caller.runs = true;
  EXPECT_EQ(caller.choose(1, Timing::kNow), "b");
}

TEST(FastestChoices, ThreadsAgreeOnOneChoice) {
  FastestChoices<int, int> choices;
  std::vector<std::vector<int>> found(4);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int key = 0; key < 200; ++key) {
        found[static_cast<size_t>(t)].push_back(choices.choose(
            key, Timing::kNow,
            [] {
              return std::vector<int>{0, 1, 2, 3};
            },
            [&](int candidate) { return std::optional<double>(candidate == t ? 1.0 : 2.0); }));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& of_thread : found) EXPECT_EQ(of_thread, found[0]);
}

TEST(Alignment, IsThePowerOfTwoOfTheAddress) {
  const auto at = [](uintptr_t address) { return alignment(reinterpret_cast<const void*>(address)); };
  EXPECT_EQ(at(0x1000), 256U) << "no algorithm asks for more";
  EXPECT_EQ(at(0x1080), 128U);
  EXPECT_EQ(at(0x1010), 16U);
  EXPECT_EQ(at(0x1006), 2U);
}

TEST(Alignment, AMisalignedBiasIsCopied) {
  const at::Tensor all = at::arange(100, at::kBFloat16);  // begins at a multiple of 64 bytes
  for (const int64_t offset : {0, 1, 4, 8, 37, 64}) {
    const at::Tensor bias = all.narrow(0, offset, 30), aligned = aligned_vector(bias);
    EXPECT_EQ(alignment(aligned.const_data_ptr()) % 16, 0U) << offset;
    EXPECT_TRUE(at::equal(aligned, bias)) << offset;
    EXPECT_EQ(aligned.is_same(bias), offset % 8 == 0) << offset << ": an aligned one is not copied";
  }
}

}  // namespace
}  // namespace tessera::cuda
