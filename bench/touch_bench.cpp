// SPDX-License-Identifier: Apache-2.0
// What it costs that sharded parameters say when they are read (docs/sharding.md): one small operation with a
// parameter that does, with one that does not, and of a network that is sharded but not among the arguments.
//
//   ninja -C build/dev bench_touch && OMP_NUM_THREADS=1 build/dev/bin/bench_touch
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <benchmark/benchmark.h>
#include <torch/nn/module.h>

#include "tessera/shard/fully_shard.h"

namespace {

struct Net : torch::nn::Module {
  at::Tensor weight;
  Net() { weight = register_parameter("weight", at::ones({4})); }
};

/// Rank 0 of 2, as one process plays it.
struct Sharded {
  std::unique_ptr<tessera::mesh::Mesh> mesh = tessera::mesh::Mesh::pretend(0, {{"shard", 2}});
  std::shared_ptr<Net> net = std::make_shared<Net>();
  tessera::shard::ShardedModule module{net, *mesh, {.sync_initial_values = false}};
};

void add(benchmark::State& state, const at::Tensor& weight) {
  const at::NoGradGuard no_grad;
  const at::Tensor x = at::ones({4});
  at::Tensor out = at::empty({4});
  for (auto _ : state) benchmark::DoNotOptimize(at::add_out(out, x, weight));
}

void plain(benchmark::State& state) { add(state, at::ones({4})); }

void beside_a_sharded_network(benchmark::State& state) {
  Sharded sharded;
  sharded.module.forward([&] { add(state, at::ones({4})); });
}

void with_a_sharded_parameter(benchmark::State& state) {
  Sharded sharded;
  sharded.module.forward([&] { add(state, sharded.net->weight); });
}

}  // namespace

BENCHMARK(plain);
BENCHMARK(beside_a_sharded_network);
BENCHMARK(with_a_sharded_parameter);
