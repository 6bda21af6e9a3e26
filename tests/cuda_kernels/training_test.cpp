// SPDX-License-Identifier: Apache-2.0
// Whole trainings with the kernels in every place that asks for them, against the CPU's own.
#include <gtest/gtest.h>

#include "tessera/eager/device.h"
#include "tessera/eager/step_end.h"
#include "tests/cuda_kernels/table.h"
#include "tests/train/small_run.h"

namespace tessera::train {
namespace {

constexpr int64_t kSteps = 3;

Curve train_once(const Sets& sets, bool as_bytes, bool decides_as_a_device = false) {
  at::set_num_threads(1);
  Curve result;
  testing::run_ranks({{"shard", 1}}, [&](mesh::Mesh& mesh) {
    const recipe::Recipe recipe = make_recipe(sets);
    const auto state = assemble(recipe, make_plan(recipe, 1), mesh, true);
    if (decides_as_a_device) {
      state->device_update =
          std::make_shared<DeviceUpdate>(*state->optimizer, *state->sharded, all_ranks(mesh), at::kCPU);
    }
    train_until(*state, mesh, kSteps, result, as_bytes);
  });
  return result;
}

// With dropout, and with branches that a product or the next norm adds.
TEST(Training, TheCurveIsTheCpus) {
  for (const Sets& sets :
       {Sets{"train.mixup=0.8", "train.cutmix=1", "data.erasing=0.3", "shard.recompute=true"},
        Sets{"optimizer.name=adam", "optimizer.lr=1e-3", "model.dropout=0", "model.drop_path=0"}}) {
    SCOPED_TRACE(sets[0]);
    const Curve expected = train_once(sets, false);
    const cuda::UsingKernels kernels;
    expect_close(train_once(sets, true), expected, 1e-5);
  }
}

int copies = 0;  // launches

// The gradients of a unit are collected in one launch, and with accumulation added in one; the bits are those
// of LibTorch's copies, one for each parameter.
TEST(Training, AUnitsGradientsAreCopiedInOneLaunch) {
  for (const Sets& sets :
       {Sets{"precision.compute=bf16"}, Sets{"precision.compute=bf16", "train.accumulation=2"},
        Sets{"precision.compute=fp32", "train.accumulation=2", "shard.recompute=true"}}) {
    SCOPED_TRACE(sets.back());
    device::DeviceKernels counting = cuda::kOnCpu, none = cuda::kOnCpu;
    counting.copy_runs = [](const device::CopyPass& pass, void* stream) {
      ++copies;
      cuda::copy_runs(pass, stream);
    };
    none.copy_runs = nullptr;
    const auto train_with = [&](const device::DeviceKernels& table) {
      const cuda::UsingKernels kernels(table);
      return train_once(sets, true);
    };
    const Curve expected = train_with(none);
    copies = 0;
    const Curve found = train_with(counting);
    EXPECT_EQ(found.losses, expected.losses);
    expect_equal(found.parameters, expected.parameters);
    const auto units = static_cast<int>(make_plan(make_recipe(sets), 1).units.size());
    EXPECT_EQ(copies, kSteps * units * (sets.size() > 1 ? 2 : 1));
  }
}

// A launch for each unit, whose numbers are read from memory, or for each run of parameters.
TEST(Training, QueuedUpdatesHaveTheSameBits) {
  for (const auto& [optimizer, compute] : {std::pair("adamw", "bf16"), std::pair("adam", "fp32")}) {
    SCOPED_TRACE(optimizer);
    const Sets sets = {concat("optimizer.name=", optimizer), concat("precision.compute=", compute),
                       "optimizer.weight_decay=0.1", "optimizer.layer_decay=0.7", "train.clip=0"};
    const cuda::UsingKernels kernels;
    const Curve expected = train_once(sets, true), found = train_once(sets, true, true);
    EXPECT_EQ(found.losses, expected.losses);
    expect_equal(found.parameters, expected.parameters);
  }
}

TEST(Training, NarrowNumbersFollow) {
  for (const Sets& sets : {Sets{"model.layer_scale=0.1"},
                           Sets{"precision.linear=fp8", "model.dropout=0", "model.drop_path=0"}}) {
    SCOPED_TRACE(sets[0]);
    Sets narrow = sets;
    narrow.emplace_back("precision.compute=bf16");
    const Curve expected = train_once(narrow, false);
    const cuda::UsingKernels kernels;
    const Curve found = train_once(narrow, true);
    for (size_t i = 0; i < kSteps; ++i)
      EXPECT_NEAR(found.losses[i], expected.losses[i], 2e-2 * expected.losses[i]);
  }
}

}  // namespace
}  // namespace tessera::train
