// SPDX-License-Identifier: Apache-2.0
// What a profile of a GPU holds: times of the device's own work.
#include <ATen/ATen.h>

#include "gpu.h"
#include "tessera/eager/device.h"
#include "tessera/profile/moment.h"
#include "tessera/profile/pass_times.h"
#include "tessera/profile/step_end_time.h"

namespace tessera::profile {
namespace {

recipe::Recipe profiled_recipe() {
  return recipe::parse_recipe(R"(
name = "profiled"
[model]
image_size = 64
patch_size = 16
width = 64
depth = 4
heads = 4
mlp_width = 128
classes = 5
[data]
source = "fake:8"
[train]
steps = 1
batch_per_rank = 2
)",
                              "test", ".", {});
}

TEST(CudaProfile, MomentsAreTheDevices) {
  TESSERA_NEEDS_A_DEVICE();
  const at::Device device = testing::use_gpu(0);
  const int64_t side = device.is_cpu() ? 256 : 4096;
  const at::Tensor factor = at::randn({side, side}, at::TensorOptions(device));
  const auto seconds = [&](int products) {
    const Moment begin(device);
    for (int i = 0; i < products; ++i) at::mm(factor, factor);
    const Moment end(device);
    eager::wait_for(device);
    return begin.seconds_to(end);
  };
  seconds(10);
  const double few = seconds(10), many = seconds(100);
  EXPECT_GT(few, 0);
  EXPECT_GT(many, 3 * few) << "more than the time of queueing them";
}

TEST(CudaProfile, EveryUnitHasTimes) {
  TESSERA_NEEDS_A_DEVICE();
  const at::Device device = testing::use_gpu(0);
  const PassTimes times = measure_passes({.recipe = profiled_recipe(),
                                          .tensor = {1, 2},
                                          .batches = {2, 8},
                                          .rounds = 2,
                                          .on = {device, /*keeps_activations=*/!device.is_cpu()}});
  // Stem and head; two kinds of blocks, whole in two modes and cut in three.
  EXPECT_EQ(times.units.size(), 2U * (2 + 2 * (2 + 3)));
  for (const planner::UnitTimes& unit : times.units) {
    EXPECT_GT(unit.forward, 0) << unit.kind << " tensor " << unit.tensor << " batch " << unit.batch;
    EXPECT_GT(unit.backward, 0) << unit.kind << " tensor " << unit.tensor << " batch " << unit.batch;
    EXPECT_LT(unit.forward + unit.backward, 1) << unit.kind;
  }
  EXPECT_GT(times.optimizer_seconds, 0);
  EXPECT_GT(times.add_sum_seconds, 0);
  EXPECT_GE(times.widen_seconds, 0);
  EXPECT_GE(times.accumulate_seconds, 0);
  EXPECT_GT(measure_step_end(profiled_recipe(), 1, 1, device), 0);
}

TEST(CudaProfile, ReplaysAreMeasuredOfEveryWholeUnit) {
  TESSERA_NEEDS_GPUS(1);
  const at::Device gpu = testing::use_gpu(0);
  const testing::UsingKernels kernels;
  const testing::Recording recording(gpu);
  recipe::Recipe recipe = profiled_recipe();
  const auto shares = [&] {
    std::vector<double> found;
    const PassTimes times = measure_passes(
        {.recipe = recipe, .tensor = {1, 2}, .batches = {2, 8}, .rounds = 3, .on = {gpu, true}});
    for (const planner::UnitTimes& unit : times.units) {
      if (unit.tensor == 1) found.push_back(unit.replayed);
      EXPECT_TRUE(unit.tensor == 1 || unit.replayed == 1);
    }
    return found;
  };
  for (const double share : shares()) {
    EXPECT_NE(share, 1);
    EXPECT_GT(share, 0.1);
    EXPECT_LT(share, 1.2) << "of kernels that follow each other faster";
  }
  recipe.run.cuda_graphs = recipe::CudaGraphs::kOff;
  for (const double share : shares()) EXPECT_EQ(share, 1);
}

}  // namespace
}  // namespace tessera::profile
