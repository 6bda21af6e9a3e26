// SPDX-License-Identifier: Apache-2.0
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <iterator>
#include <vector>

#include "tessera/ops/adamw.h"

namespace tessera::ops {
namespace {

int64_t threads_of_this_process() {
  const std::filesystem::directory_iterator threads("/proc/self/task");
  return std::distance(begin(threads), end(threads));
}

// Each test is a process of its own under ctest, so no other operation has started LibTorch's threads before.
// (The template at::parallel_for compiles without OpenMP too, into a loop on the calling thread.)
TEST(Threads, AnOpOfThisRoomRunsOnAllOfLibTorchs) {
  at::set_num_threads(3);
  constexpr int64_t kNumbers = 1 << 20;
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < 4; ++i) {
    tensors.push_back(at::empty({kNumbers}));
    std::fill_n(tensors.back().data_ptr<float>(), kNumbers, 1.0F);
  }
  adamw(tensors[0], tensors[1], tensors[2], tensors[3], {});
  EXPECT_GE(threads_of_this_process(), 3);
}

TEST(Threads, AFileThatIncludesLibTorchHasItsParallelLoops) {
  at::set_num_threads(2);
  std::atomic<int64_t> calls = 0, numbers = 0;
  at::parallel_for(0, 1000, 1, [&](int64_t begin, int64_t end) {
    ++calls;
    numbers += end - begin;
  });
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(numbers, 1000);
}

}  // namespace
}  // namespace tessera::ops
