// SPDX-License-Identifier: Apache-2.0
// Computation beside exchanges, from planted seconds.
#include "tessera/profile/exchange_work.h"

#include <gtest/gtest.h>

namespace tessera::profile {
namespace {

// 4 patches and a class token, width 32: a gather or a sum of an image has 5 * 32 values. A block makes two
// of each forward and two of each backward; its last one computes the class token alone and is another kind.
recipe::Recipe small(const std::string& keep_gathered) {
  return recipe::parse_recipe(
      "name = \"small\"\n[model]\nimage_size = 16\npatch_size = 8\nwidth = 32\ndepth = 3\n"
      "heads = 4\nmlp_width = 64\nclasses = 5\n[data]\nsource = \"fake:8\"\n[train]\n"
      "steps = 1\nbatch_per_rank = 2\n[parallel]\nkeep_gathered = " +
          keep_gathered + "\n",
      "test", ".", {});
}

planner::UnitTimes block(int64_t tensor, int64_t batch, plan::Recompute recompute, double seconds) {
  return {.kind = "blocks.0",
          .tensor = tensor,
          .batch = batch,
          .recompute = recompute,
          .forward = seconds,
          .backward = 2 * seconds};
}

TEST(ComputePerExchangedByte, IsOfBlocksThatAreCut) {
  const recipe::Recipe recipe = small("true");
  planner::Profile profile;
  profile.model = recipe.model;
  profile.units = {block(1, 1, plan::Recompute::kNone, 100), block(2, 1, plan::Recompute::kNone, 1),
                   block(2, 3, plan::Recompute::kNone, 7), block(2, 3, plan::Recompute::kAll, 100),
                   block(4, 2, plan::Recompute::kNone, 5)};
  planner::UnitTimes stem = block(2, 3, plan::Recompute::kNone, 100);  // whole whatever the degree
  stem.kind = "stem";
  profile.units.push_back(stem);
  const double image = 8 * 5 * 32 * 2;  // bytes in bf16
  const std::map<int64_t, double> found = compute_per_exchanged_byte(profile, recipe, 2);
  ASSERT_EQ(found.size(), 2U);
  EXPECT_DOUBLE_EQ(found.at(2), 3 * (1 + 7) / (4 * image));
  EXPECT_DOUBLE_EQ(found.at(4), 3 * 5 / (3 * 2 * image));
  // Where inputs are gathered again backward, a block makes two gathers more.
  EXPECT_DOUBLE_EQ(compute_per_exchanged_byte(profile, small("false"), 2).at(2), found.at(2) * 8 / 10);
}

TEST(ComputePerExchangedByte, IsNothingWithoutBlocksThatAreCut) {
  planner::Profile profile;
  profile.model = small("true").model;
  profile.units = {block(1, 1, plan::Recompute::kNone, 100)};
  EXPECT_TRUE(compute_per_exchanged_byte(profile, small("true"), 4).empty());
}

}  // namespace
}  // namespace tessera::profile
