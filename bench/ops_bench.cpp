// Tessera's kernels for CPUs beside LibTorch's operations, on the shapes of ViT Ti/16, S/16 and B/16 at 224 x
// 224: AdamW's update, layer normalisation and attention, the latter two forward and backward.
//
//   ninja -C build/dev bench_ops
//   OMP_NUM_THREADS=1 build/dev/bin/bench_ops --benchmark_enable_random_interleaving=true
//   --benchmark_repetitions=5
//
// Last argument 1: the kernels; 0: LibTorch. (TESSERA_AVX512=0 and TESSERA_AMX=0 show what else the kernels'
// side does.)
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <benchmark/benchmark.h>

#include <optional>

#include "tessera/ops/adamw.h"
#include "tessera/ops/attention.h"
#include "tessera/ops/cpu.h"
#include "tessera/ops/layer_norm.h"

namespace {

using tessera::ops::WithoutKernels;

constexpr int64_t kTokens = 197, kHeadWidth = 64;

std::optional<WithoutKernels> libtorch_if(bool wanted) {
  std::optional<WithoutKernels> off;
  if (wanted) off.emplace();
  return off;
}

at::ScalarType dtype_of(int64_t bits) { return bits == 32 ? at::kFloat : at::kBFloat16; }

/// Arguments: numbers, kernels.
void adamw(benchmark::State& state) {
  const auto off = libtorch_if(state.range(1) == 0);
  at::manual_seed(1);
  const at::Tensor p = at::randn({state.range(0)}), g = at::randn_like(p), m = at::zeros_like(p),
                   v = at::zeros_like(p);
  tessera::ops::AdamwOptions options;
  for (auto _ : state) {
    tessera::ops::adamw(p, g, m, v, options);
    ++options.step;
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}

/// Arguments: images, width, bits of a number, backward as well, kernels.
void layer_norm(benchmark::State& state) {
  const auto off = libtorch_if(state.range(4) == 0);
  const bool backward = state.range(3) != 0;
  const auto dtype = dtype_of(state.range(2));
  at::manual_seed(1);
  const int64_t width = state.range(1);
  const at::Tensor x = at::randn({state.range(0), kTokens, width}).to(dtype).requires_grad_(backward);
  const at::Tensor weight = at::randn({width}).to(dtype).requires_grad_(backward);
  const at::Tensor bias = at::randn({width}).to(dtype).requires_grad_(backward);
  const at::Tensor direction = at::randn(x.sizes()).to(dtype);
  for (auto _ : state) {
    const at::Tensor y = tessera::ops::layer_norm(x, weight, bias, 1e-6);
    if (!backward) continue;
    for (const at::Tensor& t : {x, weight, bias}) t.mutable_grad().reset();
    y.backward(direction);
  }
}

/// Arguments: images, heads, bits of a number, backward as well, kernels.
void attention(benchmark::State& state) {
  const auto off = libtorch_if(state.range(4) == 0);
  const bool backward = state.range(3) != 0;
  const auto dtype = dtype_of(state.range(2));
  at::manual_seed(1);
  const int64_t heads = state.range(1), width = heads * kHeadWidth;
  const at::Tensor qkv = at::randn({state.range(0), kTokens, 3 * width}).to(dtype).requires_grad_(backward);
  const at::Tensor direction = at::randn({state.range(0), kTokens, width}).to(dtype);
  for (auto _ : state) {
    const at::Tensor y = tessera::ops::self_attention(qkv, heads);
    if (!backward) continue;
    qkv.mutable_grad().reset();
    y.backward(direction);
  }
  // Two products forward, five backward.
  const double products = backward ? 7 : 2;
  state.counters["flop"] =
      benchmark::Counter(products * 2.0 * static_cast<double>(kTokens * kTokens * width * state.range(0)),
                         benchmark::Counter::kIsIterationInvariantRate);
}

}  // namespace

BENCHMARK(adamw)->ArgsProduct({{5'700'000, 22'000'000, 86'000'000}, {0, 1}})->Unit(benchmark::kMillisecond);
BENCHMARK(layer_norm)
    ->ArgsProduct({{8, 64}, {192, 384, 768}, {32, 16}, {0, 1}, {0, 1}})
    ->Unit(benchmark::kMicrosecond);
BENCHMARK(attention)->ArgsProduct({{8}, {3, 6, 12}, {32, 16}, {0, 1}, {0, 1}})->Unit(benchmark::kMicrosecond);
