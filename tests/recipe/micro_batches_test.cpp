// SPDX-License-Identifier: Apache-2.0
// Micro-batches of a pipeline where no key says how many.
#include <gtest/gtest.h>

#include <algorithm>

#include "tessera/recipe/make_plan.h"
#include "tests/recipe/recipe_text.h"

namespace tessera::recipe {
namespace {

Recipe pipeline(int64_t stages, bool interleaved, const std::vector<std::string>& more) {
  std::vector<std::string> sets = {concat("parallel.pipeline=", stages)};
  if (interleaved) sets.insert(sets.end(), {"parallel.schedule=interleaved", "parallel.virtual_stages=2"});
  sets.insert(sets.end(), more.begin(), more.end());
  return read("[data]\nsource = \"fake:8\"\n", sets);
}

/// Of a batch on `ranks` ranks of each stage.
int64_t chosen(int64_t stages, bool interleaved, int64_t batch, int64_t ranks = 1) {
  const Recipe recipe = pipeline(stages, interleaved, {concat("train.batch=", batch)});
  EXPECT_TRUE(chooses_micro_batches(recipe));
  const plan::Plan plan = make_plan(recipe, stages * ranks);
  const BatchSizes sizes = batch_sizes(recipe, plan);
  EXPECT_EQ(sizes.batch, batch);
  EXPECT_EQ(sizes.accumulation, plan.micro_batches);
  return plan.micro_batches;
}

struct Case {
  int64_t stages;
  bool interleaved;
  int64_t batch, micro_batches, ranks = 1;
};

TEST(MicroBatches, AreUpToFourTimesTheStages) {
  for (const Case& one : std::vector<Case>{
           // 4 p, or less down to 2 p, divides the images.
           {2, false, 64, 8},
           {2, false, 48, 8},
           {2, false, 36, 6},
           {2, false, 20, 5},
           {2, false, 12, 6},
           {3, false, 24, 12},
           {3, false, 22, 11},
           {3, false, 14, 7},
           {4, false, 24, 12},
           {4, false, 1024, 16, 64},
           // None does: primes, twice a prime, an odd product.
           {2, false, 11, 8},
           {2, false, 37, 8},
           {2, false, 97, 8},
           {2, false, 34, 8},
           {2, false, 9, 8},
           {3, false, 13, 12},
           {3, false, 25, 12},
           {4, false, 17, 16},
           {4, false, 127, 16},
           // Ranks of a stage share the batch out; 73 and 74 are at most 37 images of each.
           {2, false, 74, 8, 2},
           {2, false, 73, 8, 2},
           // As many as there are images.
           {2, false, 1, 1},
           {2, false, 2, 2},
           {2, false, 3, 3},
           {2, false, 7, 7},
           {4, false, 13, 13},
           // Interleaved: multiples of p.
           {2, true, 64, 8},
           {2, true, 12, 6},
           {2, true, 20, 4},
           {2, true, 37, 8},
           {2, true, 10, 8},
           {2, true, 7, 6},
           {2, true, 3, 2},
           {2, true, 1, 2},
           {3, true, 36, 12},
           {3, true, 18, 9},
           {3, true, 37, 12},
           {3, true, 11, 9},
           {3, true, 2, 3},
           {4, true, 24, 12},
           {4, true, 31, 16},
       }) {
    EXPECT_EQ(chosen(one.stages, one.interleaved, one.batch, one.ranks), one.micro_batches)
        << one.stages << " stages" << (one.interleaved ? ", interleaved" : "") << ", batch " << one.batch;
  }
}

// Never fewer than the largest divisor up to 4 p gives, and no more than there are images.
TEST(MicroBatches, AreAtLeastTheLargestDivisor) {
  for (const int64_t stages : {2, 3, 5}) {
    for (const bool interleaved : {false, true}) {
      const int64_t step = interleaved ? stages : 1;
      for (int64_t batch = 1; batch <= 90; ++batch) {
        int64_t divisor = step;
        for (int64_t count = step; count <= 4 * stages; count += step)
          if (batch % count == 0) divisor = count;
        const int64_t found = chosen(stages, interleaved, batch);
        EXPECT_GE(found, divisor) << batch;
        EXPECT_LE(found, std::max(std::min(4 * stages, batch), step)) << batch;
        EXPECT_EQ(found % step, 0) << batch;
        if (divisor < 2 * stages) continue;
        EXPECT_EQ(found, divisor) << batch;
      }
    }
  }
}

TEST(MicroBatches, KeysDecideFirst) {
  const auto count = [](const std::vector<std::string>& sets) {
    const Recipe recipe = pipeline(2, false, sets);
    return concat(make_plan(recipe, 2).micro_batches, chooses_micro_batches(recipe) ? " chosen" : "");
  };
  EXPECT_EQ(count({"train.batch=37", "parallel.micro_batches=3"}), "3");
  EXPECT_EQ(count({"train.batch=37", "train.accumulation=2"}), "2");
  EXPECT_EQ(count({"train.batch=40", "train.batch_per_rank=4"}), "10");
  EXPECT_EQ(count({"train.batch=0", "train.batch_per_rank=4"}), "8 chosen");
  EXPECT_FALSE(chooses_micro_batches(read("[data]\nsource = \"fake:8\"\n", {})));
}

}  // namespace
}  // namespace tessera::recipe
