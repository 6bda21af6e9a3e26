// SPDX-License-Identifier: Apache-2.0
// The exact GELU, x times the normal distribution's Phi(x), as at::gelu computes it by erf (timm's nn.GELU):
// a thread for a few packs of 16 bytes. cuBLASLt has a GELU that a product could do on the way, but in its
// tanh approximation (the header does not say so; pytorch/pytorch#104061 does), which is a different network.
// The bias is part of the product already (products.cpp).
//
// Compiled without fused multiply-adds (CMakeLists.txt): the GELU that backward makes again is the same bits.
#include "tessera/cuda/column_sums.cuh"
#include "tessera/cuda/kernels.h"
#include "tessera/cuda/launch.cuh"

namespace tessera::cuda {
namespace {

using device::Gelu, device::GeluBackward, device::GeluBackwardSums;

constexpr int kThreads = 256;

/// Of the standard normal distribution at x: its share below x, and its density.
struct Normal {
  float phi, density;
};

/// The share beyond |x| is exp(-x^2 / 2), which the density needs as well, times a polynomial of 1 / (1 + p
/// |x|) (Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26, halved: at most 0.75e-7 off).
/// That is about 15 instructions; erff and expf are about 45, with which backward would wait for arithmetic.
__device__ Normal normal_at(float x) {
  const float power = __expf(-0.5F * x * x);
  const float t = __fdividef(1.0F, fmaf(0.23164189F, fabsf(x), 1.0F));
  float sum = fmaf(0.5307027145F, t, -0.7265760135F);
  sum = fmaf(sum, t, 0.7107068705F);
  sum = fmaf(sum, t, -0.142248368F);
  sum = fmaf(sum, t, 0.127414796F);
  const float beyond = sum * t * power;
  return {x < 0 ? beyond : 1.0F - beyond, 0.39894228F * power};
}

/// The derivative of x phi(x).
__device__ float slope(float x, const Normal& normal) { return fmaf(x, normal.density, normal.phi); }

__device__ float gelu_of(float x) { return x * normal_at(x).phi; }

/// What a kernel does with a pack of kVector values: it reads several before it finishes the first, so that
/// enough loads are on their way.
template <typename T, int kVector>
struct Forward {
  using P = Pack<T, kVector>;
  using Read = P;
  const Gelu& a;

  __device__ Read read(int64_t begin) const {
    return *reinterpret_cast<const P*>(static_cast<const T*>(a.x) + begin);
  }
  __device__ void finish(const Read& x, int64_t begin) const {
    P y;
    for (int k = 0; k < kVector; ++k) put(y.at[k], gelu_of(to_float(x.at[k])));
    *reinterpret_cast<P*>(static_cast<T*>(a.y) + begin) = y;
  }
};

template <typename T, int kVector>
struct Backward {
  using P = Pack<T, kVector>;
  struct Read {
    P x, gradient;
  };
  const GeluBackward& a;

  __device__ Read read(int64_t begin) const {
    return {*reinterpret_cast<const P*>(static_cast<const T*>(a.x) + begin),
            *reinterpret_cast<const P*>(static_cast<const T*>(a.gradient) + begin)};
  }
  __device__ void finish(const Read& read, int64_t begin) const {
    P of_x, y;
    for (int k = 0; k < kVector; ++k) {
      const float value = to_float(read.x.at[k]);
      const Normal normal = normal_at(value);
      put(of_x.at[k], to_float(read.gradient.at[k]) * slope(value, normal));
      put(y.at[k], value * normal.phi);
    }
    *reinterpret_cast<P*>(static_cast<T*>(a.of_x) + begin) = of_x;
    if (a.y != nullptr) *reinterpret_cast<P*>(static_cast<T*>(a.y) + begin) = y;
  }
};

/// Backward of a pack of columns of a matrix, which are summed on the way (column_sums.cuh).
template <typename T, int kVector>
struct BackwardColumn {
  using P = Pack<T, kVector>;
  using Read = typename Backward<T, kVector>::Read;
  const P *x, *gradient;
  P* of_x;
  int64_t packs;  // of a row

  __device__ BackwardColumn(const GeluBackwardSums& a, int64_t pack)
      : x(static_cast<const P*>(a.x) + pack),
        gradient(static_cast<const P*>(a.gradient) + pack),
        of_x(static_cast<P*>(a.of_x) + pack),
        packs(a.width / kVector) {}
  __device__ Read read(int64_t row) const { return {x[row * packs], gradient[row * packs]}; }
  __device__ void finish(const Read& read, int64_t row, float (&sums)[kVector]) const {
    P result;
    for (int k = 0; k < kVector; ++k) {
      const float value = to_float(read.x.at[k]);
      const float of_value = to_float(read.gradient.at[k]) * slope(value, normal_at(value));
      put(result.at[k], of_value);
      sums[k] += of_value;
    }
    of_x[row * packs] = result;
  }
};

constexpr int kForwardPacks = 4, kBackwardPacks = 2;  // of a thread

template <typename T, int kVector>
__global__ void __launch_bounds__(kThreads) gelu_kernel(Gelu a) {
  over_packs<kVector, kForwardPacks>(Forward<T, kVector>{a}, Forward<T, 1>{a}, a.count, blockIdx.x,
                                     gridDim.x);
}

template <typename T, int kVector>
__global__ void __launch_bounds__(kThreads) gelu_backward_kernel(GeluBackward a) {
  over_packs<kVector, kBackwardPacks>(Backward<T, kVector>{a}, Backward<T, 1>{a}, a.count, blockIdx.x,
                                      gridDim.x);
}

/// Four blocks at once on an SM (64 registers a thread) have 64 KiB on their way, more than a GPU's memory
/// delivers within its latency.
template <typename T, int kVector>
__global__ void __launch_bounds__(kSumThreads, 4) gelu_backward_sums_kernel(GeluBackwardSums a) {
  sum_columns<kVector, kBackwardPacks, BackwardColumn<T, kVector>>(a);
}

template <typename Pass>
void launch_over(void (*kernel)(Pass), int64_t of_block, const Pass& a, void* stream) {
  launch(kernel, divided_up(a.count, of_block), kThreads, a, stream);
}

}  // namespace

void gelu(const Gelu& a, void* stream) {
  with_type(a.number, [&](auto zero) {
    using T = decltype(zero);
    constexpr int kMost = kAccess / sizeof(T);
    const bool packs = is_aligned(a.x, kAccess) && is_aligned(a.y, kAccess);
    launch_over(packs ? gelu_kernel<T, kMost> : gelu_kernel<T, 1>,
                kThreads * kForwardPacks * (packs ? kMost : 1), a, stream);
  });
}

void gelu_backward(const GeluBackward& a, void* stream) {
  with_type(a.number, [&](auto zero) {
    using T = decltype(zero);
    constexpr int kMost = kAccess / sizeof(T);
    const bool packs = is_aligned(a.x, kAccess) && is_aligned(a.gradient, kAccess) &&
                       is_aligned(a.of_x, kAccess) && is_aligned(a.y, kAccess);
    launch_over(packs ? gelu_backward_kernel<T, kMost> : gelu_backward_kernel<T, 1>,
                kThreads * kBackwardPacks * (packs ? kMost : 1), a, stream);
  });
}

void gelu_backward_sums(const GeluBackwardSums& a, void* stream) {
  with_type(a.number, [&](auto zero) {
    using T = decltype(zero);
    constexpr int kMost = kAccess / sizeof(T);
    if (packs_fit<T>(a.width, a.gradient, a.x, a.of_x)) {
      launch(gelu_backward_sums_kernel<T, kMost>, sum_blocks<kMost>(a.rows, a.width), kSumThreads, a, stream);
    } else {
      launch(gelu_backward_sums_kernel<T, 1>, sum_blocks<1>(a.rows, a.width), kSumThreads, a, stream);
    }
  });
  add_parts(a.number, {a.partial, sum_parts(a.rows, a.width), a.width, a.width, a.sums, nullptr}, stream);
}

}  // namespace tessera::cuda
