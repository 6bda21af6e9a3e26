// SPDX-License-Identifier: Apache-2.0
// AdamW and Adam over a flat shard: moments, decay, update and the parameter's narrow copy in one pass and
// one launch. No product is fused with a sum (CMakeLists.txt), so the bits are those of the CPU's kernel
// (ops/adamw.cpp).
#include "tessera/cuda/kernels.h"
#include "tessera/cuda/launch.cuh"

namespace tessera::cuda {
namespace {

using device::AdamwCoefficients, device::AdamwPass, device::AdamwTable;

constexpr int kThreads = 256;
constexpr int kMost = kAccess / sizeof(float);

__device__ inline void update(float& p, float g, float& m, float& v, const AdamwCoefficients& c,
                              float grad_scale) {
  float gradient = g * grad_scale;
  if (c.coupled_decay != 0) gradient += c.coupled_decay * p;
  m = m * c.beta1 + gradient * c.one_minus_beta1;
  v = v * c.beta2 + gradient * gradient * c.one_minus_beta2;
  const float denominator = sqrtf(v) / c.sqrt_correction2 + c.epsilon;
  p = p * c.decay - c.step_size * (m / denominator);
}

/// Elements [begin, begin + kCount).
template <typename Copy, typename Gradient, int kCount>
__device__ void update_pack(const AdamwPass& a, int64_t begin, const AdamwCoefficients& by,
                            float grad_scale) {
  using P = Pack<float, kCount>;
  const auto pack = [&](float* data) { return reinterpret_cast<P*>(data + begin); };
  P p = *pack(a.parameter), m = *pack(a.exp_avg), v = *pack(a.exp_avg_sq);
  const auto g =
      *reinterpret_cast<const Pack<Gradient, kCount>*>(static_cast<const Gradient*>(a.gradient) + begin);
  for (int k = 0; k < kCount; ++k) update(p.at[k], to_float(g.at[k]), m.at[k], v.at[k], by, grad_scale);
  *pack(a.parameter) = p;
  *pack(a.exp_avg) = m;
  *pack(a.exp_avg_sq) = v;
  if (a.copy == nullptr) return;
  Pack<Copy, kCount> copy;
  for (int k = 0; k < kCount; ++k) put(copy.at[k], p.at[k]);
  *reinterpret_cast<Pack<Copy, kCount>*>(static_cast<Copy*>(a.copy) + begin) = copy;
}

template <typename Copy, typename Gradient, int kCount>
__global__ void adamw_kernel(AdamwPass a) {
  const int64_t begin = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * kCount;
  if (begin + kCount <= a.count) {
    update_pack<Copy, Gradient, kCount>(a, begin, a.by, a.grad_scale);
  } else {
    for (int64_t i = begin; i < a.count; ++i) update_pack<Copy, Gradient, 1>(a, i, a.by, a.grad_scale);
  }
}

/// The first run that ends behind element i; `runs` where there is none.
__device__ inline int64_t first_run_behind(const AdamwTable& table, int64_t i) {
  int64_t low = 0, high = table.runs;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (table.run[middle].end <= i) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

/// One launch for all runs of a shard. Packs lie at multiples of their size in the shard; one that is not
/// within a single run is updated element by element.
template <typename Copy, typename Gradient, int kCount>
__global__ void adamw_runs_kernel(AdamwPass a) {
  const AdamwTable& table = a.table;
  if (*table.use == 0) return;
  const float grad_scale = *table.grad_scale;
  const int64_t begin = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * kCount;
  const int64_t end = begin + kCount < a.count ? begin + kCount : a.count;
  for (int64_t i = begin, r = first_run_behind(table, begin); i < end && r < table.runs;) {
    const device::AdamwRun run = table.run[r];
    const AdamwCoefficients by = table.coefficients[run.row];
    if (run.begin <= begin && begin + kCount <= run.end) {
      update_pack<Copy, Gradient, kCount>(a, begin, by, grad_scale);
      return;
    }
    const int64_t last = run.end < end ? run.end : end;
    for (i = run.begin > i ? run.begin : i; i < last; ++i)
      update_pack<Copy, Gradient, 1>(a, i, by, grad_scale);
    if (i >= run.end) ++r;
  }
}

template <typename Copy, typename Gradient>
void launch_adamw(const AdamwPass& a, void* stream) {
  // A run of parameters begins anywhere in its shard.
  const bool packs = is_aligned(a.parameter, kAccess) && is_aligned(a.gradient, kMost * sizeof(Gradient)) &&
                     is_aligned(a.exp_avg, kAccess) && is_aligned(a.exp_avg_sq, kAccess) &&
                     is_aligned(a.copy, kAccess / 2);
  const int64_t blocks = divided_up(a.count, kThreads * (packs ? kMost : 1));
  if (a.table.run != nullptr) {
    launch(packs ? adamw_runs_kernel<Copy, Gradient, kMost> : adamw_runs_kernel<Copy, Gradient, 1>, blocks,
           kThreads, a, stream);
  } else {
    launch(packs ? adamw_kernel<Copy, Gradient, kMost> : adamw_kernel<Copy, Gradient, 1>, blocks, kThreads, a,
           stream);
  }
}

}  // namespace

void adamw(const AdamwPass& a, void* stream) {
  TESSERA_CHECK(a.gradient_number == device::Number::kFloat || a.gradient_number == a.copy_number);
  const auto launch_with = [&](auto copy) {
    using Copy = decltype(copy);
    a.gradient_number == device::Number::kFloat ? launch_adamw<Copy, float>(a, stream)
                                                : launch_adamw<Copy, Copy>(a, stream);
  };
  a.copy_number == device::Number::kHalf ? launch_with(__half()) : launch_with(__nv_bfloat16());
}

}  // namespace tessera::cuda
