// SPDX-License-Identifier: Apache-2.0
// Memory of tensors that died serves others, of any size, and what is held stays below what was used at once.
#include "tessera/shard/tensor_memory.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include <random>
#include <thread>
#include <vector>

#include "tessera/base/error.h"

namespace tessera::shard {
namespace {

constexpr int64_t kMiB = 1 << 20;

at::Tensor bytes(int64_t count) { return at::empty({count}, at::kByte); }

int64_t page_faults() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

/// As the tests before this one left it (ctest gives each a process of its own), and what changes from there.
class TensorMemoryOf : public ::testing::Test {
 protected:
  void SetUp() override {
    keep_tensor_memory();
    if (tensor_memory().used > 0 || tensor_memory().waiting > 0)
      GTEST_SKIP() << "other tests' memory is here";
  }
};

TEST_F(TensorMemoryOf, ADeadTensorServesSmallerOnesAndIsWholeAgainAfterThem) {
  const void* place = bytes(8 * kMiB).fill_(7).data_ptr();
  EXPECT_EQ(tensor_memory().waiting, 8 * kMiB);
  {
    const at::Tensor three = bytes(3 * kMiB), five = bytes(5 * kMiB);
    EXPECT_EQ(three.data_ptr(), place);
    EXPECT_TRUE((three == 7).all().item<bool>() && (five == 7).all().item<bool>()) << "the same pages";
  }
  EXPECT_EQ(bytes(8 * kMiB).data_ptr(), place);
}

// Not malloc's heap, whose holes grow with the number of tensors.
TEST_F(TensorMemoryOf, TensorsOf32KiBAndMoreLiveThere) {
  const at::Tensor small = bytes(kMiB / 32 - 1), large = bytes(kMiB / 32);
  EXPECT_EQ(tensor_memory().used, kMiB / 32);
}

TEST_F(TensorMemoryOf, TheSmallestThatIsLargeEnoughServes) {
  std::vector<at::Tensor> tensors, walls;
  for (const int64_t size : {6, 2, 4}) {
    tensors.push_back(bytes(size * kMiB));
    walls.push_back(bytes(kMiB));  // so that no two waiting ones lie side by side
  }
  const void* four = tensors[2].data_ptr();
  tensors.clear();
  EXPECT_EQ(bytes(3 * kMiB).data_ptr(), four);
}

// What lives is not written by others, and little waits beyond the most that was used.
TEST_F(TensorMemoryOf, ManySizesInAnyOrderKeepTheirBytesAndTheBound) {
  std::mt19937 random(5);
  struct Held {
    at::Tensor tensor;
    uint8_t mark;
  };
  std::vector<Held> held;
  const auto check_and_drop = [&](size_t i) {
    const at::Tensor& tensor = held[i].tensor;
    EXPECT_TRUE((tensor == held[i].mark).all().item<bool>());
    held[i] = held.back();
    held.pop_back();
  };
  for (int turn = 0; turn < 600; ++turn) {
    if (held.size() < 12 && random() % 5 > 1) {
      const auto mark = static_cast<uint8_t>(random());
      held.push_back({bytes(kMiB + static_cast<int64_t>(random() % (4 * kMiB))).fill_(mark), mark});
    } else if (!held.empty()) {
      check_and_drop(random() % held.size());
    }
    const TensorMemory memory = tensor_memory();
    EXPECT_LE(memory.used + memory.waiting, memory.peak + memory.peak / 64);
  }
  while (!held.empty()) check_and_drop(0);
  EXPECT_EQ(tensor_memory().used, 0);
}

// A block that one thread freed is in the cache of that thread's core.
TEST_F(TensorMemoryOf, AThreadWithAPoolGetsNoBlocksOfOtherThreads) {
  at::Tensor outlives;
  {
    const at::Tensor wall = bytes(kMiB);
    void* const freed = bytes(8 * kMiB).data_ptr();
    std::thread([&] {
      {
        const OwnTensorMemory pool;
        void* const of_pool = bytes(8 * kMiB).data_ptr();
        EXPECT_NE(of_pool, freed);
        EXPECT_EQ(bytes(8 * kMiB).data_ptr(), of_pool);
        std::thread([&] {
          EXPECT_EQ(bytes(8 * kMiB).data_ptr(), freed) << "of a thread without a pool";
        }).join();
        EXPECT_EQ(tensor_memory().waiting, 16 * kMiB);
        outlives = bytes(4 * kMiB).fill_(5);
      }
      EXPECT_EQ(tensor_memory().waiting, 8 * kMiB) << "what waited in the pool is given back";
      EXPECT_EQ(bytes(8 * kMiB).data_ptr(), freed);
    }).join();
    EXPECT_TRUE((outlives == 5).all().item<bool>());
    EXPECT_EQ(tensor_memory().used, 5 * kMiB);
    EXPECT_EQ(tensor_memory().peak, 13 * kMiB) << "of all threads together, at one time";
    EXPECT_EQ(bytes(8 * kMiB).data_ptr(), freed);
  }
  outlives.reset();
  EXPECT_EQ(tensor_memory().used, 0);
  EXPECT_EQ(tensor_memory().waiting, 9 * kMiB) << "nothing of the pool";
}

TEST_F(TensorMemoryOf, WhatAnotherThreadFreesGoesBackToThePool) {
  const OwnTensorMemory pool;
  at::Tensor tensor = bytes(8 * kMiB);
  void* const place = tensor.data_ptr();
  std::thread([&] {
    const OwnTensorMemory other;
    tensor.reset();
    EXPECT_NE(bytes(8 * kMiB).data_ptr(), place);
  }).join();
  EXPECT_EQ(bytes(8 * kMiB).data_ptr(), place);
}

// Models that a thread measures by turns find their memory although it is in other pieces each time.
TEST_F(TensorMemoryOf, APoolHoldsUpToTwiceItsPeak) {
  std::thread([&] {
    const OwnTensorMemory pool;
    { const at::Tensor first = bytes(4 * kMiB), wall = bytes(kMiB), second = bytes(4 * kMiB); }
    {
      const at::Tensor wall = bytes(kMiB);
      bytes(9 * kMiB);  // no hole is as large: the holes stay
      EXPECT_EQ(tensor_memory().waiting, 17 * kMiB);
    }
    for (int64_t size = 10; size < 20; ++size) {
      bytes(size * kMiB);
      EXPECT_LE(tensor_memory().used + tensor_memory().waiting, 2 * tensor_memory().peak);
    }
  }).join();
  EXPECT_EQ(tensor_memory().used + tensor_memory().waiting, 0);
}

TEST_F(TensorMemoryOf, AThreadHasAtMostOnePool) {
  const OwnTensorMemory pool;
  EXPECT_THROW(OwnTensorMemory(), InternalError);
}

// The second round of the same sizes finds its memory: no page is asked of the system. (Pages of 4 KiB for
// this: one of 2 MiB would count as one fault.)
TEST_F(TensorMemoryOf, ASteadyRoundAsksTheSystemForNothing) {
  ASSERT_EQ(::prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0), 0);
  const auto round = [] {
    std::vector<at::Tensor> kept;
    for (const int64_t size : {9, 4, 12, 6, 3}) {
      kept.push_back(bytes(size * kMiB).fill_(1));
      bytes(2 * size * kMiB).fill_(2);  // goes at once
    }
    while (!kept.empty()) {
      bytes(5 * kMiB).fill_(3);
      kept.pop_back();
    }
  };
  for (int i = 0; i < 3; ++i) round();
  const int64_t before = page_faults();
  round();
  EXPECT_LT(page_faults() - before, 256) << "of some 30,000 pages that it writes";
  ::prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0);
}

}  // namespace
}  // namespace tessera::shard
