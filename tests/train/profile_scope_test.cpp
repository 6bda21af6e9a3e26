// SPDX-License-Identifier: Apache-2.0
// What `tessera plan profile` measures by default, and what it refuses, on CPUs and GPUs.
#include "tessera/train/profile_scope.h"

#include <gtest/gtest.h>

#include "tessera/planner/assumed_profile.h"
#include "tests/error_text.h"

namespace tessera::train {
namespace {

using Sizes = std::vector<int64_t>;

PlanProfileJob profile_job(const std::string& model = "preset = \"S/16\"") {
  PlanProfileJob job;
  job.recipe = recipe::parse_recipe(
      "name = \"scope\"\n[model]\n" + model + "\n[train]\nsteps = 1\nbatch_per_rank = 2\n", "test", ".", {});
  return job;
}

std::shared_ptr<const planner::Machine> host_of(int64_t ranks) {
  planner::Machine machine;
  machine.ranks_of_host = ranks;
  return std::make_shared<const planner::Machine>(machine);
}

TEST(ProfileScope, OnCpusAllRanksAreMeasured) {
  PlanProfileJob job = profile_job();
  ProfileScope scope = profile_scope(job, /*on_gpu=*/false, /*cores=*/16);
  EXPECT_EQ(scope.ranks, 2);
  EXPECT_EQ(scope.tensor, (Sizes{1, 2}));
  EXPECT_EQ(scope.batches, (Sizes{1, 2, 4, 8}));
  job.recipe.run.threads = 4;
  job.tensor = {4, 1, 4};
  job.batches = {16, 3};
  scope = profile_scope(job, false, 16);
  EXPECT_EQ(scope.ranks, 4);
  EXPECT_EQ(scope.tensor, (Sizes{1, 4}));
  EXPECT_EQ(scope.batches, (Sizes{3, 16}));
}

TEST(ProfileScope, OnAGpuOneRankHasPretendedPeers) {
  PlanProfileJob job = profile_job();
  ProfileScope scope = profile_scope(job, /*on_gpu=*/true, /*cores=*/16);
  EXPECT_EQ(scope.ranks, 1);
  EXPECT_EQ(scope.tensor, (Sizes{1}));
  EXPECT_EQ(scope.batches, (Sizes{8, 32, 128}));
  job.tensor = {3, 1};
  EXPECT_EQ(profile_scope(job, true, 16).tensor, (Sizes{1, 3}));
  job.tensor = {};
  job.machine = host_of(8);
  EXPECT_EQ(profile_scope(job, true, 16).tensor, (Sizes{1, 2, 4, 8}));
  job.recipe.model = arch::model_config("resnet18");
  EXPECT_EQ(profile_scope(job, true, 16).tensor, (Sizes{1})) << "no layer can be cut";
}

TEST(ProfileScope, RefusesWhatCannotBeMeasured) {
  const auto error = [](const PlanProfileJob& job, bool on_gpu) {
    return error_text([&] { profile_scope(job, on_gpu, 16); });
  };
  PlanProfileJob job = profile_job();
  job.procs = 4;
  EXPECT_EQ(
      error(job, true),
      "[train.plan_profile] --procs is 4, but a GPU is measured by one rank: expected 1; remove --procs, and "
      "describe the links between GPUs with --machine FILE");
  job.tensor = {3};
  EXPECT_EQ(error(job, false),
            "[train.plan_profile] --tensor has 3: expected degrees that divide the 4 ranks of --procs");
  job.procs = 1;
  job.machine = host_of(8);
  EXPECT_EQ(
      error(job, true),
      "[train.plan_profile] --tensor has 3: expected degrees that divide the 8 ranks of a host of --machine");
  job.machine = nullptr;
  job.tensor = {0};
  EXPECT_EQ(error(job, true), "[train.plan_profile] --tensor has 0: expected 1 to 256");
}

}  // namespace
}  // namespace tessera::train
