// SPDX-License-Identifier: Apache-2.0
// How close the search comes to its lower bound, and how fast, for models that are too large to try every
// plan.
#include <gtest/gtest.h>

#include <filesystem>
#include <iostream>

#include "tessera/planner/assumed_profile.h"
#include "tessera/planner/search.h"
#include "tessera/recipe/machine.h"
#include "tessera/recipe/recipe.h"

namespace tessera::planner {
namespace {

constexpr double kLargeGiB = 1024.0 * 1024 * 1024;
const std::filesystem::path kRecipes = std::filesystem::path(TESSERA_SOURCE_DIR) / "recipes";

Profile assumed(const std::string& recipe, const std::vector<std::string>& sets, const std::string& machine) {
  return assumed_profile(recipe::read_recipe(kRecipes / recipe, sets).model,
                         recipe::read_machine(kRecipes / "machines" / machine));
}

/// Searches, prints, and expects a plan within the budget whose gap is small.
void expect_small_gap(const Profile& profile, int64_t ranks, int64_t batch, double memory, double most_gap,
                      double seconds) {
  SearchQuestion question;
  question.ranks = ranks;
  question.ranks_of_host = 8;
  question.batches = {batch};
  question.memory = memory;
  question.inputs.compute_bytes = 2;
  question.pieces = 4;
  const SearchResult result = search(profile, question);
  ASSERT_FALSE(result.best.empty());
  const FoundPlan& best = result.best.front();
  std::cout << ranks << " ranks, batch " << batch << ", " << memory / kLargeGiB
            << " GiB: " << best.time.seconds << " s, gap " << 100 * result.gap() << " %, " << result.seconds
            << " s, " << result.simulated << " simulated\n";
  EXPECT_LE(best.most_memory(), memory);
  EXPECT_LE(result.gap(), most_gap);
  EXPECT_LE(result.seconds, seconds);
  // All ranks together compute at most at the peak of the faster machine.
  const double flops = arch::training_flops(profile.model) / static_cast<double>(ranks);
  EXPECT_GT(result.lower_bound, flops / 989e12);
}

/// Times are limited to some ten times what is needed: tests share their machine.
class LargeSearch : public testing::TestWithParam<const char*> {};

TEST_P(LargeSearch, GapOfGiantOn64RanksIsSmall) {
  const Profile profile = assumed(
      "bv_s16_90ep.toml",
      {"model.width=1664", "model.depth=48", "model.heads=16", "model.mlp_width=8192", "model.patch_size=14"},
      GetParam());
  for (const int64_t batch : {1024, 2048}) {
    for (const double memory : {80e9, 20 * kLargeGiB, 12 * kLargeGiB, 8 * kLargeGiB})
      expect_small_gap(profile, 64, batch, memory, /*most_gap=*/0.005, /*seconds=*/10);
  }
}

TEST_P(LargeSearch, GapOf120BillionOn2048RanksIsSmall) {
  const Profile profile = assumed("vit_120b.toml", {}, GetParam());
  expect_small_gap(profile, 2048, 4096, 80e9, 0.005, /*seconds=*/60);
  expect_small_gap(profile, 2048, 8192, 80e9, 0.005, /*seconds=*/60);
}

INSTANTIATE_TEST_SUITE_P(Machines, LargeSearch, testing::Values("a100_80g.toml", "h100_sxm.toml"),
                         [](const auto& info) { return std::string(info.param).substr(0, 4); });

}  // namespace
}  // namespace tessera::planner
