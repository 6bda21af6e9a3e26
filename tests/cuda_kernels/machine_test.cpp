// SPDX-License-Identifier: Apache-2.0
// The CPU in a GPU's place: what it computes with, and that it finds what it says it finds.
#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

#include "tests/cuda_kernels/cuda_on_cpu.h"

namespace tessera::cuda {
namespace {

struct Sums {
  float* out;
};

__global__ void sum_kernel(Sums a) {
  float sums[2] = {static_cast<float>(threadIdx.x), 1};
  sum_over_block(sums);
  float again[1] = {sums[0]};
  sum_over_block(again);
  float* out = a.out + 3 * (int64_t{blockIdx.x} * blockDim.x + threadIdx.x);
  out[0] = sums[0];
  out[1] = sums[1];
  out[2] = again[0];
}

TEST(Machine, EveryThreadHasTheBlocksSum) {
  for (const int threads : {32, 64, 96, 1024}) {
    std::vector<float> out(static_cast<size_t>(3 * 3 * threads));
    launch(sum_kernel, 3, threads, {out.data()}, nullptr);
    const auto count = static_cast<float>(threads);
    for (size_t i = 0; i < out.size(); i += 3) {
      EXPECT_EQ(out[i], count * (count - 1) / 2) << threads;
      EXPECT_EQ(out[i + 1], count);
      EXPECT_EQ(out[i + 2], count * count * (count - 1) / 2);
    }
  }
}

__global__ void half_a_barrier_kernel(Sums) {
  if (threadIdx.x < 16) __syncthreads();
}
__global__ void half_a_shuffle_kernel(Sums a) {
  if (threadIdx.x % 2 == 0) a.out[0] = __shfl_xor_sync(kAllLanes, 1.0F, 2);
}

TEST(Machine, ABarrierThatNotAllThreadsReachIsFound) {
  float out = 0;
  EXPECT_THROW(launch(half_a_barrier_kernel, 1, 32, {&out}, nullptr), std::logic_error);
  EXPECT_THROW(launch(half_a_shuffle_kernel, 1, 32, {&out}, nullptr), std::logic_error);
  EXPECT_THROW(launch(sum_kernel, 0, 32, {&out}, nullptr), std::logic_error);
  EXPECT_THROW(launch(sum_kernel, 1, 48, {&out}, nullptr), std::logic_error);
}

TEST(Machine, WorkIsDividedIntoWholeWarps) {
  EXPECT_EQ(threads_for(1), 32);
  EXPECT_EQ(threads_for(33), 64);
  EXPECT_EQ(threads_for(100000), kMostThreads);
  EXPECT_EQ(threads_for(100000, 512), 512);
  EXPECT_EQ(threads_for(33, 512), 64);
}

}  // namespace
}  // namespace tessera::cuda
