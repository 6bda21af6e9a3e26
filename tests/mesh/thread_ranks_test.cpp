// SPDX-License-Identifier: Apache-2.0
#include "tessera/mesh/thread_ranks.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <chrono>
#include <stdexcept>
#include <thread>

#include "../error_text.h"
#include "tessera/base/epoll_wait.h"
#include "tessera/base/thread_cores.h"

namespace tessera::mesh {
namespace {

TEST(ThreadRanks, EveryRankHasItsMesh) {
  run_on_thread_ranks({.axes = {{"dp", 2}, {"shard", 2}}}, [](Mesh& mesh) {
    at::Tensor sum = at::full({1}, static_cast<double>(mesh.rank()), at::kDouble);
    mesh.world().all_reduce(sum, "ranks");
    EXPECT_EQ(sum.item<double>(), 0 + 1 + 2 + 3);
    EXPECT_EQ(mesh.group("shard").size(), 2);
  });
}

/// The cause, not the CommErrors that follow from it; and the others do not wait for their time limit.
TEST(ThreadRanks, OneRanksErrorEndsAll) {
  const auto begin = std::chrono::steady_clock::now();
  for (const bool shared_memory : {true, false}) {
    const ThreadRanks ranks{{{"stage", 3}}, {}, std::chrono::seconds(120), shared_memory};
    const auto body = [](Mesh& mesh) {
      if (mesh.rank() == 1) user_error({.where = "test", .problem = "rank 1 cannot"});
      mesh.world().barrier("what never comes");
    };
    EXPECT_EQ(error_text([&] { run_on_thread_ranks(ranks, body); }), "[test] rank 1 cannot");
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
}

// LibTorch finds Tessera's epoll_wait(): Note [Event loops] in base/epoll_wait.cpp.
TEST(ThreadRanks, EventLoopsYieldOnASharedCore) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the thread sanitizer's epoll_wait() comes first";
#endif
  const int64_t before = interrupted_polls();
  std::thread([] {
    keep_thread_on({cores_of_thread().front()});
    run_on_thread_ranks({.axes = {{"dp", 2}}, .shared_memory = false}, [](Mesh& mesh) {
      const at::Tensor mine = at::full({1 << 20}, 1.0f), all = at::empty({2 << 20}, at::kFloat);
      for (int i = 0; i < 100; ++i) mesh.world().all_gather(all, mine, "test").wait();
    });
  }).join();
  EXPECT_GT(interrupted_polls(), before);
}

}  // namespace
}  // namespace tessera::mesh
