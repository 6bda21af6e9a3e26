// SPDX-License-Identifier: Apache-2.0
// Helpers of the kernels: vectorised loads and stores (Pack), reductions over a block, and the launch.
// Compiled by nvcc. tests/cuda_kernels compiles the same kernels for the CPU and replaces the launch
// (TESSERA_CUDA_ON_CPU).
#pragma once

#ifndef TESSERA_CUDA_ON_CPU
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>
#endif

#include <cstdint>
#include <limits>

#include "tessera/base/error.h"
#include "tessera/device/kernel_table.h"

namespace tessera::cuda {

#ifndef TESSERA_CUDA_ON_CPU
/// Queues `blocks` blocks of `threads` threads. Every kernel takes one argument, a plain struct.
template <typename Arguments>
void launch(void (*kernel)(Arguments), int64_t blocks, int threads, const Arguments& arguments,
            void* stream) {
  TESSERA_CHECK(blocks > 0 && blocks <= std::numeric_limits<int32_t>::max(), blocks, " blocks");
  kernel<<<static_cast<unsigned>(blocks), static_cast<unsigned>(threads), 0,
           static_cast<cudaStream_t>(stream)>>>(arguments);
  if (const cudaError_t status = cudaGetLastError(); status != cudaSuccess) {
    user_error({.where = "cuda.launch",
                .problem = concat("the GPU does not take a kernel: ", cudaGetErrorString(status))});
  }
}
#endif

constexpr int kWarp = 32;
constexpr int kMostThreads = 1024;  // of a block
constexpr unsigned kAllLanes = 0xFFFFFFFFU;

constexpr int64_t divided_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// Threads per block for this many pieces of work: a multiple of kWarp, at most `most` (the kernel's
/// __launch_bounds__). A kernel without __launch_bounds__ may be launched with 1,024 threads per block, so it
/// must not need more than 64 registers per thread (tests/cuda_kernels/check_registers.sh).
constexpr int threads_for(int64_t pieces, int most = kMostThreads) {
  const int64_t threads = divided_up(pieces, kWarp) * kWarp;
  return static_cast<int>(threads < most ? threads : most);
}

__device__ inline float to_float(float value) { return value; }
__device__ inline float to_float(__half value) { return __half2float(value); }
__device__ inline float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ inline void put(float& to, float value) { to = value; }
__device__ inline void put(__half& to, float value) { to = __float2half_rn(value); }
__device__ inline void put(__nv_bfloat16& to, float value) { to = __float2bfloat16_rn(value); }

/// kCount neighbouring values that one thread loads or stores in one access.
template <typename T, int kCount>
struct alignas(sizeof(T) * kCount) Pack {
  T at[kCount];
};

constexpr int64_t kAccess = 16;  // bytes; the widest load or store of one thread

inline bool is_aligned(const void* data, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(bytes) == 0;
}

/// Rows can be read in packs of 16 bytes.
template <typename T, typename... Pointers>
bool packs_fit(int64_t width, Pointers... data) {
  return width % (kAccess / static_cast<int64_t>(sizeof(T))) == 0 && (is_aligned(data, kAccess) && ...);
}

/// Calls body(T()) with the C++ type of `number`.
template <typename Body>
void with_type(device::Number number, const Body& body) {
  switch (number) {
    case device::Number::kFloat:
      return body(float());
    case device::Number::kHalf:
      return body(__half());
    case device::Number::kBFloat16:
      return body(__nv_bfloat16());
  }
}

/// Reduces the values of all threads of the block by `op`, in a fixed order; every thread gets the result.
/// Requires: all threads of the block call it; blockDim.x is a multiple of kWarp.
template <typename Value, int kCount, typename Op>
__device__ void over_block(Value (&values)[kCount], Value nothing, const Op& op) {
  __shared__ Value of_warps[kCount][kMostThreads / kWarp];
  const unsigned lane = threadIdx.x % kWarp, warps = blockDim.x / kWarp;
  const auto over_warp = [&](Value value) {
    for (int step = kWarp / 2; step > 0; step /= 2)
      value = op(value, __shfl_xor_sync(kAllLanes, value, step));
    return value;
  };
  for (int i = 0; i < kCount; ++i) values[i] = over_warp(values[i]);
  if (warps == 1) return;
  for (int i = 0; i < kCount; ++i) {
    if (lane == 0) of_warps[i][threadIdx.x / kWarp] = values[i];
  }
  __syncthreads();
  for (int i = 0; i < kCount; ++i) values[i] = over_warp(lane < warps ? of_warps[i][lane] : nothing);
  __syncthreads();  // the next call writes there
}

template <int kCount>
__device__ void sum_over_block(float (&values)[kCount]) {
  over_block(values, 0.0F, [](float a, float b) { return a + b; });
}

/// One of `blocks` blocks over `count` values in packs of kVector: it has kAtOnce * blockDim.x packs, of
/// which a thread reads kAtOnce before it finishes the first, so that enough loads are on their way; the last
/// block also has what fills no pack. `each`: each.finish(each.read(begin), begin) for the pack that begins
/// at value `begin`; `one`: the same for a single value.
template <int kVector, int kAtOnce, typename Each, typename One>
__device__ void over_packs(const Each& each, const One& one, int64_t count, int64_t block, int64_t blocks) {
  const int64_t packs = count / kVector, threads = blockDim.x;
  const int64_t first = block * kAtOnce * threads + threadIdx.x;
  if (first + (kAtOnce - 1) * threads < packs) {
    typename Each::Read read[kAtOnce];
    for (int i = 0; i < kAtOnce; ++i) read[i] = each.read((first + i * threads) * kVector);
    for (int i = 0; i < kAtOnce; ++i) each.finish(read[i], (first + i * threads) * kVector);
  } else {
    for (int i = 0; i < kAtOnce; ++i) {
      const int64_t begin = (first + i * threads) * kVector;
      if (begin + kVector <= count) each.finish(each.read(begin), begin);
    }
  }
  const int64_t rest = packs * kVector + threadIdx.x;
  if (block == blocks - 1 && rest < count) one.finish(one.read(rest), rest);
}

}  // namespace tessera::cuda
