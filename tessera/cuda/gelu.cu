// SPDX-License-Identifier: Apache-2.0
// The exact GELU, x times the normal distribution's Phi(x), by erf as at::gelu computes it (timm's nn.GELU):
// a thread for a pack of 16 bytes. cuBLASLt has a GELU that a product could do on the way, but in its tanh
// approximation (the header does not say so; pytorch/pytorch#104061 does), which is a different network. The
// bias is part of the product already (products.cpp).
//
// Compiled without fused multiply-adds (CMakeLists.txt): the GELU that backward makes again is the same bits.
#include "tessera/cuda/kernels.h"
#include "tessera/cuda/launch.cuh"

namespace tessera::cuda {
namespace {

using ops::Gelu, ops::GeluBackward;

constexpr int kThreads = 256;
constexpr float kRootOfHalf = 0.70710678118654752F, kDensityAtZero = 0.39894228040143268F;

/// The share of the standard normal distribution below x.
__device__ float phi(float x) { return 0.5F * (1.0F + erff(x * kRootOfHalf)); }

__device__ float gelu_of(float x) { return x * phi(x); }

/// The derivative of gelu_of; `phi_of_x`: phi(x).
__device__ float gelu_slope(float x, float phi_of_x) {
  return phi_of_x + x * (expf(-0.5F * x * x) * kDensityAtZero);
}

template <typename T, int kVector>
__device__ void gelu_pack(const Gelu& a, int64_t begin) {
  using P = Pack<T, kVector>;
  P pack = *reinterpret_cast<const P*>(static_cast<const T*>(a.x) + begin);
  for (int k = 0; k < kVector; ++k) put(pack.at[k], gelu_of(to_float(pack.at[k])));
  *reinterpret_cast<P*>(static_cast<T*>(a.y) + begin) = pack;
}

template <typename T, int kVector>
__device__ void gelu_backward_pack(const GeluBackward& a, int64_t begin) {
  using P = Pack<T, kVector>;
  const P x = *reinterpret_cast<const P*>(static_cast<const T*>(a.x) + begin);
  const P gradient = *reinterpret_cast<const P*>(static_cast<const T*>(a.gradient) + begin);
  P of_x, y;
  for (int k = 0; k < kVector; ++k) {
    const float value = to_float(x.at[k]), share = phi(value);
    put(of_x.at[k], to_float(gradient.at[k]) * gelu_slope(value, share));
    put(y.at[k], value * share);
  }
  *reinterpret_cast<P*>(static_cast<T*>(a.of_x) + begin) = of_x;
  if (a.y != nullptr) *reinterpret_cast<P*>(static_cast<T*>(a.y) + begin) = y;
}

template <typename T, int kVector>
__global__ void __launch_bounds__(kThreads) gelu_kernel(Gelu a) {
  const int64_t begin = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * kVector;
  if (begin + kVector <= a.count) {
    gelu_pack<T, kVector>(a, begin);
  } else {
    for (int64_t i = begin; i < a.count; ++i) gelu_pack<T, 1>(a, i);
  }
}

template <typename T, int kVector>
__global__ void __launch_bounds__(kThreads) gelu_backward_kernel(GeluBackward a) {
  const int64_t begin = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * kVector;
  if (begin + kVector <= a.count) {
    gelu_backward_pack<T, kVector>(a, begin);
  } else {
    for (int64_t i = begin; i < a.count; ++i) gelu_backward_pack<T, 1>(a, i);
  }
}

template <typename Pass>
void launch_over(void (*kernel)(Pass), int vector, const Pass& a, void* stream) {
  launch(kernel, divided_up(a.count, kThreads * vector), kThreads, a, stream);
}

}  // namespace

void gelu(const Gelu& a, void* stream) {
  with_type(a.number, [&](auto zero) {
    using T = decltype(zero);
    constexpr int kMost = kAccess / sizeof(T);
    const bool packs = is_aligned(a.x, kAccess) && is_aligned(a.y, kAccess);
    launch_over(packs ? gelu_kernel<T, kMost> : gelu_kernel<T, 1>, packs ? kMost : 1, a, stream);
  });
}

void gelu_backward(const GeluBackward& a, void* stream) {
  with_type(a.number, [&](auto zero) {
    using T = decltype(zero);
    constexpr int kMost = kAccess / sizeof(T);
    const bool packs = is_aligned(a.x, kAccess) && is_aligned(a.gradient, kAccess) &&
                       is_aligned(a.of_x, kAccess) && is_aligned(a.y, kAccess);
    launch_over(packs ? gelu_backward_kernel<T, kMost> : gelu_backward_kernel<T, 1>, packs ? kMost : 1, a,
                stream);
  });
}

}  // namespace tessera::cuda
