// SPDX-License-Identifier: Apache-2.0
// State between a GPU and the CPU, and NCCL with a single rank.
#include <ATen/ATen.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "../train/small_run.h"
#include "checkpoint_bytes.h"
#include "gpu.h"

namespace tessera::train {
namespace {
namespace fs = std::filesystem;

/// Loads `from` on the device, makes steps up to `until`, saves into `to`; returns that checkpoint.
fs::path pass_on(at::Device device, const recipe::Recipe& recipe, const fs::path& from, int64_t until,
                 const fs::path& to) {
  fs::path saved;
  testing::run_ranks({{"shard", 1}}, [&](mesh::Mesh& mesh) {
    if (!device.is_cpu()) testing::use_gpu(device.index());
    const auto state = assemble(recipe, make_plan(recipe, 1), mesh, true, device);
    if (!from.empty()) train::load_state(*state, from);
    Curve curve;
    train_until(*state, mesh, until, curve);
    saved = train::save_state(*state, mesh, to, false);
  });
  return saved;
}

TEST(CudaState, CheckpointsFromGpuToCpuToGpuAreBitwise) {
  TESSERA_NEEDS_A_DEVICE();
  const at::Device gpu = testing::use_gpu(0);
  const TemporaryFolder folder("tessera-cuda-state");
  for (const char* compute : {"fp32", "bf16"}) {
    SCOPED_TRACE(compute);
    const recipe::Recipe recipe =
        make_recipe({concat("precision.compute=", compute), "ema.decay=0.9", "train.steps=20"});
    const auto in = [&](const char* name) { return folder.path() / concat(compute, name); };
    const fs::path trained = pass_on(gpu, recipe, {}, 3, in("gpu"));
    const fs::path of_cpu = pass_on(at::kCPU, recipe, trained, 3, in("cpu"));
    const fs::path again = pass_on(gpu, recipe, of_cpu, 3, in("gpu-again"));
    EXPECT_EQ(testing::tensor_bytes(of_cpu), testing::tensor_bytes(trained));
    EXPECT_EQ(testing::tensor_bytes(again), testing::tensor_bytes(trained));
    // The comparison sees a step.
    EXPECT_NE(testing::tensor_bytes(pass_on(gpu, recipe, of_cpu, 4, in("later"))),
              testing::tensor_bytes(trained));
  }
}

TEST(CudaNccl, OneRankGathersAndExchanges) {
  TESSERA_NEEDS_GPUS(1);
  const at::Device gpu = testing::use_gpu(0);
  const auto backend = device::open_cuda().plugin->nccl_backend(c10::make_intrusive<c10d::HashStore>(), 0, 1,
                                                                gpu.index(), std::chrono::seconds(60));
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    at::Tensor input = at::randn({1000}).to(gpu, dtype), gathered = at::zeros_like(input),
               exchanged = at::zeros_like(input);
    std::vector<int64_t> equal;
    backend->_allgather_base(gathered, input)->wait();
    backend->alltoall_base(exchanged, input, equal, equal)->wait();
    EXPECT_TRUE(at::equal(gathered, input));
    EXPECT_TRUE(at::equal(exchanged, input));
  }
  backend->shutdown();
}

}  // namespace
}  // namespace tessera::train
