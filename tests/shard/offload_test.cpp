// SPDX-License-Identifier: Apache-2.0
// State in the host's memory: the same numbers, and nothing of it where units compute.
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "foreign_training.h"
#include "tessera/device/host_memory.h"
#include "tessera/shard/tensor_memory.h"

namespace tessera {
namespace {

using shard::FullyShardOptions;
using shard::Level;
using shard::Offload;
using shard::ShardedModule;

constexpr int64_t kMiB = 1 << 20, kLayers = 4;

FullyShardOptions options_of(Level level, Offload offload, at::ScalarType compute) {
  FullyShardOptions options = testing::every_child({.level = level, .offload = offload});
  if (compute != at::kFloat) options.precision.compute = options.precision.buffer = compute;
  return options;
}

class Offloaded : public ::testing::TestWithParam<Level> {};

TEST_P(Offloaded, IsBitwiseAsWithout) {
  const std::vector<std::vector<mesh::Axis>> meshes = {
      {{"shard", 1}}, {{"shard", 2}}, {{"shard", 3}}, {{"dp", 2}, {"shard", 2}}};
  for (const auto& axes : meshes) {
    for (const auto compute : {at::kFloat, at::kBFloat16}) {
      for (const Offload offload : {Offload::kOptimizer, Offload::kAll}) {
        const int64_t before = device::host_memory_used();
        testing::run_ranks(axes, [&](mesh::Mesh& mesh) {
          SCOPED_TRACE(concat(mesh.describe(), " ", compute, " ", plan::to_string(offload)));
          const testing::Training training{.accumulation = 2, .recompute = true};
          testing::expect_equal(
              testing::sharded(mesh, options_of(GetParam(), offload, compute), training),
              testing::sharded(mesh, options_of(GetParam(), Offload::kNone, compute), training));
        });
        EXPECT_EQ(device::host_memory_used(), before) << "all of it goes with the modules";
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, Offloaded,
                         ::testing::Values(Level::kReplicate, Level::kZero1, Level::kZero2, Level::kZero3),
                         [](const auto& info) { return plan::to_string(info.param); });

// Nothing is queued there, and nothing needs an event, which CPUs do not have.
TEST(CopiesToHost, AreCompleteAtOnceOnTheCpu) {
  device::CopiesToHost copies;
  const at::Tensor from = at::arange(1000, at::kFloat), to = device::host_tensor(1000, at::kFloat);
  copies.copy(to.narrow(0, 10, 500), from.narrow(0, 0, 500).to(at::kBFloat16));
  EXPECT_TRUE(at::equal(to.narrow(0, 10, 500), from.narrow(0, 0, 500).to(at::kBFloat16).to(at::kFloat)));
  EXPECT_EQ(to.narrow(0, 0, 10).abs().max().item<float>(), 0);
  copies.order();
  copies.wait();
  copies.wait();
}

/// Square layers of 4 MiB each, whose tensors count in tensor_memory().
struct Deep : torch::nn::Module {
  std::vector<torch::nn::Linear> layers;
  Deep() {
    for (int64_t i = 0; i < kLayers; ++i) {
      layers.push_back(register_module("layer" + std::to_string(i),
                                       torch::nn::Linear(torch::nn::LinearOptions(1024, 1024).bias(false))));
    }
  }
};

/// MiB of tensors and of offloaded state, of all ranks, which are threads here.
struct Held {
  int64_t tensors = 0, host = 0;
};

Held held_now(mesh::Mesh& mesh) {
  mesh.world().barrier("before");
  const Held held{shard::tensor_memory().used / kMiB, device::host_memory_used() / kMiB};
  mesh.world().barrier("after");
  return held;
}

TEST(OffloadMemory, HoldsTheStateAndComputingHoldsNone) {
  shard::keep_tensor_memory();
  for (const int64_t world : {1, 2}) {
    testing::run_ranks({{"shard", world}}, [&](mesh::Mesh& mesh) {
      for (const Offload offload : {Offload::kNone, Offload::kOptimizer, Offload::kAll}) {
        SCOPED_TRACE(concat(world, " ranks, ", plan::to_string(offload)));
        const Held before = held_now(mesh);
        const auto net = std::make_shared<Deep>();
        FullyShardOptions options = options_of(Level::kZero3, offload, at::kFloat);
        options.sync_initial_values = false;
        ShardedModule sharded(net, mesh, options);
        const Held built = held_now(mesh);
        // Of all ranks together: masters, offloaded gradients (others come with the first backward pass) and
        // the slices that are gathered from.
        const int64_t parameters = 4 * kLayers, state = 2 * parameters;
        EXPECT_EQ(built.host - before.host, offload == Offload::kNone ? 0 : state);
        EXPECT_EQ(built.tensors - before.tensors, offload == Offload::kAll ? 0 : parameters);
        int64_t told = 0;
        for (const auto& unit : sharded.units()) told += unit.offloaded_bytes;
        EXPECT_EQ(told * world, (built.host - before.host) * kMiB);

        const at::Tensor x = testing::normal("x", {1, 1024});
        at::AutoGradMode gradients(false);
        sharded.forward([&] {
          at::Tensor h = x;
          for (auto& layer : net->layers) {
            h = layer->forward(h);
            // One that computes and one ahead; with kAll the slice of each travels besides.
            const Held now = held_now(mesh);
            const int64_t gathered = world == 1 && offload != Offload::kAll ? 0 : 2 * 4 * world;
            const int64_t travelling = offload == Offload::kAll && world > 1 ? 2 * 4 : 0;
            EXPECT_LE(now.tensors - built.tensors, gathered + travelling);
          }
          return h;
        });
        const bool there = world == 1 && offload != Offload::kAll;  // views of the slice
        EXPECT_EQ(net->layers[0]->weight.storage().nbytes() == 0, !there);
        at::AutoGradMode again(true);
        sharded.forward([&] { return net->layers[0]->forward(x).sum(); }).backward();
        torch::optim::SGD(sharded.parameters(), torch::optim::SGDOptions(0.1)).step();
        EXPECT_EQ(held_now(mesh).host, built.host) << "a step takes no more";
      }
    });
  }
}

}  // namespace
}  // namespace tessera
