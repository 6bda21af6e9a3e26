// SPDX-License-Identifier: Apache-2.0
// AdamW and Adam over a flat shard: moments, decay, update and the parameter's narrow copy in one pass. No
// product is fused with a sum (CMakeLists.txt), so the bits are those of the CPU's kernel (ops/adamw.cpp).
#include "tessera/cuda/kernels.h"
#include "tessera/cuda/launch.cuh"

namespace tessera::cuda {
namespace {

using ops::AdamwCoefficients, ops::AdamwPass;

constexpr int kThreads = 256;
constexpr int kMost = kAccess / sizeof(float);

template <bool kCoupled>
__device__ void update(float& p, float g, float& m, float& v, const AdamwCoefficients& c) {
  float gradient = g * c.grad_scale;
  if constexpr (kCoupled) gradient += c.coupled_decay * p;
  m = m * c.beta1 + gradient * c.one_minus_beta1;
  v = v * c.beta2 + gradient * gradient * c.one_minus_beta2;
  const float denominator = sqrtf(v) / c.sqrt_correction2 + c.epsilon;
  p = p * c.decay - c.step_size * (m / denominator);
}

/// Elements [begin, begin + kCount).
template <typename Copy, bool kCoupled, int kCount>
__device__ void update_pack(const AdamwPass& a, int64_t begin) {
  using P = Pack<float, kCount>;
  const auto pack = [&](float* data) { return reinterpret_cast<P*>(data + begin); };
  P p = *pack(a.parameter), m = *pack(a.exp_avg), v = *pack(a.exp_avg_sq);
  const P g = *reinterpret_cast<const P*>(a.gradient + begin);
  for (int k = 0; k < kCount; ++k) update<kCoupled>(p.at[k], g.at[k], m.at[k], v.at[k], a.by);
  *pack(a.parameter) = p;
  *pack(a.exp_avg) = m;
  *pack(a.exp_avg_sq) = v;
  if (a.copy == nullptr) return;
  Pack<Copy, kCount> copy;
  for (int k = 0; k < kCount; ++k) put(copy.at[k], p.at[k]);
  *reinterpret_cast<Pack<Copy, kCount>*>(static_cast<Copy*>(a.copy) + begin) = copy;
}

template <typename Copy, bool kCoupled, int kCount>
__global__ void adamw_kernel(AdamwPass a) {
  const int64_t begin = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * kCount;
  if (begin + kCount <= a.count) {
    update_pack<Copy, kCoupled, kCount>(a, begin);
  } else {
    for (int64_t i = begin; i < a.count; ++i) update_pack<Copy, kCoupled, 1>(a, i);
  }
}

template <typename Copy, bool kCoupled>
void launch_adamw(const AdamwPass& a, void* stream) {
  // A run of parameters begins anywhere in its shard.
  const bool packs = is_aligned(a.parameter, kAccess) && is_aligned(a.gradient, kAccess) &&
                     is_aligned(a.exp_avg, kAccess) && is_aligned(a.exp_avg_sq, kAccess) &&
                     is_aligned(a.copy, kAccess / 2);
  launch(packs ? adamw_kernel<Copy, kCoupled, kMost> : adamw_kernel<Copy, kCoupled, 1>,
         divided_up(a.count, kThreads * (packs ? kMost : 1)), kThreads, a, stream);
}

}  // namespace

void adamw(const AdamwPass& a, void* stream) {
  const bool half = a.copy_number == ops::Number::kHalf;
  if (a.coupled) {
    half ? launch_adamw<__half, true>(a, stream) : launch_adamw<__nv_bfloat16, true>(a, stream);
  } else {
    half ? launch_adamw<__half, false>(a, stream) : launch_adamw<__nv_bfloat16, false>(a, stream);
  }
}

}  // namespace tessera::cuda
