// SPDX-License-Identifier: Apache-2.0
// Each sample once over all ranks, balanced over tensor groups.
#include "tessera/data/placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "tests/data/pixel_source.h"

namespace tessera::data {
namespace {

const std::vector<plan::Span> kAdjacentFours = {{1, 4, true}}, kStridedTwos = {{4, 2, true}};

TEST(StepShares, OfAFullStepAreNeighbours) {
  const StepShares shares(48, 48, 4, 3, {{1, 2, true}});
  for (int64_t rank = 0; rank < 4; ++rank) {
    for (int64_t micro_batch = 0; micro_batch < 3; ++micro_batch) {
      EXPECT_EQ(shares.of(rank, micro_batch).first, (rank * 3 + micro_batch) * 4);
      EXPECT_EQ(shares.of(rank, micro_batch).size, 4);
    }
  }
}

/// Any number of samples, any layout.
TEST(StepShares, HaveEachSampleOnce) {
  for (const auto& [world, accumulation] :
       std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {1, 4}, {4, 3}, {8, 1}, {8, 2}}) {
    const std::vector<plan::Span> spans = world == 8 ? kAdjacentFours : std::vector<plan::Span>{};
    for (int64_t samples = 0; samples <= 4 * world * accumulation; ++samples) {
      const int64_t most = (samples + world * accumulation - 1) / (world * accumulation);
      const StepShares shares(samples, samples, world, accumulation, spans);
      int64_t next = 0;
      for (int64_t rank = 0; rank < world; ++rank) {
        for (int64_t i = 0; i < accumulation; ++i) {
          const RankSamples share = shares.of(rank, i);
          EXPECT_EQ(share.first, next);
          EXPECT_LE(share.size, most);
          next += share.size;
          // Ranks differ by one sample at most.
          EXPECT_LE(std::abs(share.size - shares.of(0, i).size), 1);
          // So do micro-batches, but for the last samples, which are not enough for all ranks.
          EXPECT_GE(share.size, std::max<int64_t>(samples / world / accumulation - 1, 0));
        }
      }
      EXPECT_EQ(next, samples);
    }
  }
}

/// Where the batch divides, whatever the number of ranks.
TEST(StepShares, AShortStepFillsTheMicroBatchesOfAFullOne) {
  constexpr int64_t kBatch = 48, kAccumulation = 3, kMicroBatch = kBatch / kAccumulation;
  for (const int64_t world : {1, 2, 4, 8}) {
    for (int64_t samples = 0; samples <= kBatch; ++samples) {
      const StepShares shares(samples, kBatch, world, kAccumulation, {});
      for (int64_t i = 0; i < kAccumulation; ++i) {
        int64_t sum = 0;
        for (int64_t rank = 0; rank < world; ++rank) sum += shares.of(rank, i).size;
        EXPECT_EQ(sum, std::clamp<int64_t>(samples - i * kMicroBatch, 0, kMicroBatch)) << samples;
      }
    }
  }
}

TEST(StepShares, TensorGroupsHaveEquallyMany) {
  const auto of_ranks = [](const StepShares& shares, const std::vector<int64_t>& ranks, int64_t micro_batch) {
    int64_t sum = 0;
    for (const int64_t rank : ranks) sum += shares.of(rank, micro_batch).size;
    return sum;
  };
  // 12 samples on 8 ranks.
  const StepShares adjacent(12, 12, 8, 1, kAdjacentFours);
  EXPECT_EQ(of_ranks(adjacent, {0, 1, 2, 3}, 0), 6);
  EXPECT_EQ(of_ranks(adjacent, {4, 5, 6, 7}, 0), 6);
  // Micro-batches of 8, 8 and 4 samples on 8 ranks; then none.
  const StepShares strided(20, 20, 8, 4, kStridedTwos);
  for (int64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(of_ranks(strided, {i, i + 4}, 0), 2);
    EXPECT_EQ(of_ranks(strided, {i, i + 4}, 1), 2);
    EXPECT_EQ(of_ranks(strided, {i, i + 4}, 2), 1);
    EXPECT_EQ(of_ranks(strided, {i, i + 4}, 3), 0);
  }
}

TEST(EvaluationShares, HaveEachSampleOnceAndAreBalanced) {
  for (int64_t samples = 0; samples <= 40; ++samples) {
    const EvaluationShares shares(samples, 8, {{1, 4, true}, {4, 2, true}});
    std::set<int64_t> seen;
    std::vector<int64_t> sizes;
    for (int64_t rank = 0; rank < 8; ++rank) {
      sizes.push_back(shares.size(rank));
      for (int64_t i = 0; i < shares.size(rank); ++i) {
        const int64_t sample = shares.sample(rank, i);
        if (sample < samples - samples % 8) {
          EXPECT_EQ(sample, rank + 8 * i);
        }
        EXPECT_LT(sample, samples);
        EXPECT_TRUE(seen.insert(sample).second);
      }
    }
    EXPECT_EQ(static_cast<int64_t>(seen.size()), samples);
    const int64_t fours = sizes[0] + sizes[1] + sizes[2] + sizes[3];
    EXPECT_LE(std::abs(2 * fours - samples), 1);
    for (size_t i = 0; i < 4; ++i) EXPECT_LE(std::abs(4 * (sizes[i] + sizes[i + 4]) - samples), 4);
  }
}

/// The loaders' samples: 4 of 12 on the ranks of different groups, each sample once, with its number.
TEST(EvaluationShares, AreWhatTheLoaderDelivers) {
  const Pixels source(12);
  std::set<uint64_t> seen;
  std::vector<int64_t> counts(8);
  for (int64_t rank = 0; rank < 8; ++rank) {
    LoaderOptions options = share(rank, 8, 8, 1, 0);
    options.tensor_spans = kAdjacentFours;
    EvalLoader loader(source, one_pixel(), options);
    for (Batch batch; loader.next(&batch);) {
      expect_pixels(batch);
      for (const uint64_t sample : batch.samples) EXPECT_TRUE(seen.insert(sample).second);
      counts[static_cast<size_t>(rank)] += batch.size;
    }
  }
  EXPECT_EQ(seen.size(), 12U);
  EXPECT_EQ(std::accumulate(counts.begin(), counts.begin() + 4, int64_t{0}), 6);
}

}  // namespace
}  // namespace tessera::data
