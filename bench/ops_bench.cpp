// SPDX-License-Identifier: Apache-2.0
// Tessera's kernels for CPUs beside LibTorch's operations, on the shapes of ViT Ti/16, S/16 and B/16 at 224 x
// 224: AdamW's update; layer normalisation, attention and linear layers, forward and backward.
//
//   ninja -C build/dev bench_ops
//   OMP_NUM_THREADS=1 build/dev/bin/bench_ops --benchmark_enable_random_interleaving=true
//   --benchmark_repetitions=5
//
// Last argument 1: the kernels; 0: LibTorch. (TESSERA_AMX=0, TESSERA_AVX512=0 and TESSERA_AVX2=0 show what
// else the kernels' side does.)
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <benchmark/benchmark.h>

#include <optional>

#include "tessera/ops/adamw.h"
#include "tessera/ops/attention.h"
#include "tessera/ops/cpu/cpu.h"
#include "tessera/ops/layer_norm.h"
#include "tessera/ops/linear.h"

namespace {

using tessera::ops::WithoutKernels;

constexpr int64_t kTokens = 197, kHeadWidth = 64;

at::ScalarType dtype_of(int64_t bits) { return bits == 32 ? at::kFloat : at::kBFloat16; }

/// Arguments: numbers, kernels.
void adamw(benchmark::State& state) {
  std::optional<WithoutKernels> off;
  if (state.range(1) == 0) off.emplace();
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
  std::optional<WithoutKernels> off;
  if (state.range(4) == 0) off.emplace();
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
  std::optional<WithoutKernels> off;
  if (state.range(4) == 0) off.emplace();
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

enum Then : int64_t { kNothing, kGelu, kAdd };

/// Forward and backward. Arguments: rows, in, out, what follows, bits of a number, kernels.
void linear(benchmark::State& state) {
  std::optional<WithoutKernels> off;
  if (state.range(5) == 0) off.emplace();
  const auto dtype = dtype_of(state.range(4));
  const int64_t rows = state.range(0), in = state.range(1), out = state.range(2), then = state.range(3);
  at::manual_seed(1);
  const auto values = [&](at::IntArrayRef shape) { return at::randn(shape).to(dtype).requires_grad_(); };
  const at::Tensor x = values({rows, in}), weight = values({out, in}), bias = values({out});
  const at::Tensor residual = values({rows, out}), direction = at::randn({rows, out}).to(dtype);
  for (auto _ : state) {
    const at::Tensor y = then == kGelu  ? tessera::ops::linear_gelu(x, weight, bias)
                         : then == kAdd ? tessera::ops::linear_add(x, weight, bias, residual)
                                        : tessera::ops::linear(x, weight, bias);
    for (const at::Tensor& t : {x, weight, bias, residual}) t.mutable_grad().reset();
    y.backward(direction);
  }
  state.counters["flop"] = benchmark::Counter(6.0 * static_cast<double>(rows * in * out),
                                              benchmark::Counter::kIsIterationInvariantRate);
}

/// Query, key and value; attention's projection; the MLP's two.
void layers(benchmark::internal::Benchmark* b) {
  for (const int64_t bits : {32, 16}) {
    for (const int64_t width : {192, 384, 768}) {
      for (const int64_t kernels : {0, 1}) {
        const int64_t rows = kTokens * (width == 192 ? 32 : 16);
        b->Args({rows, width, 3 * width, kNothing, bits, kernels});
        b->Args({rows, width, width, kAdd, bits, kernels});
        b->Args({rows, width, 4 * width, kGelu, bits, kernels});
        b->Args({rows, 4 * width, width, kAdd, bits, kernels});
      }
    }
  }
}

}  // namespace

BENCHMARK(adamw)
    ->ArgsProduct({{5'700'000, 22'000'000, 86'000'000}, {0, 1}})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK(layer_norm)
    ->ArgsProduct({{8, 64}, {192, 384, 768}, {32, 16}, {0, 1}, {0, 1}})
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);
BENCHMARK(attention)
    ->ArgsProduct({{8}, {3, 6, 12}, {32, 16}, {0, 1}, {0, 1}})
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);
BENCHMARK(linear)->Apply(layers)->UseRealTime()->Unit(benchmark::kMillisecond);
