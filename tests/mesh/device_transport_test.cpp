// SPDX-License-Identifier: Apache-2.0
// The transport of a device's tensors, over Gloo in NCCL's place: which operations it starts, when, and with
// whom.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <future>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "tessera/base/error.h"
#include "tessera/mesh/mesh.h"
#include "tessera/mesh/transport.h"

namespace tessera::mesh {
namespace {

using Store = c10::intrusive_ptr<c10d::Store>;

BackendMaker gloo_maker(int rank, int size, std::atomic<int>* made) {
  return [=](const Store& store) -> c10::intrusive_ptr<c10d::Backend> {
    ++*made;
    // Ranks on threads race in c10d's flight recorder (see transport_gloo.cpp).
    static std::once_flag once;
    std::call_once(once, [] { ::setenv("TORCH_FR_BUFFER_SIZE", "0", /*overwrite=*/0); });
    auto options = c10d::ProcessGroupGloo::Options::create();
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
    return c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, options);
  };
}

using MakeTransport = std::function<std::shared_ptr<Transport>(int rank, const Store& store)>;

/// Ranks as threads.
void run_over(int size, const MakeTransport& make, const std::function<void(Mesh&)>& body) {
  const Store store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::future<void>> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.push_back(std::async(std::launch::async, [=, &make, &body] {
      const auto mesh =
          Mesh::over(rank, {{"shard", size}}, [=, &make](const std::string& line, int64_t, int64_t) {
            return make(rank, c10::make_intrusive<c10d::PrefixStore>(line, store));
          });
      body(*mesh);
    }));
  }
  for (auto& rank : ranks) rank.get();
}

/// `type`: of the tensors that go through the backends.
void run(int size, at::DeviceType type, std::atomic<int>* made, const std::function<void(Mesh&)>& body) {
  run_over(
      size,
      [=](int rank, const Store& own) {
        return device_transport(pretend_transport(rank, size), own, type, gloo_maker(rank, size, made));
      },
      body);
}

/// Rows of one rank alone, gathered and summed, in two messages each.
void expect_unequal_rows(Mesh& mesh) {
  Group& group = mesh.group("shard");
  const std::vector<int64_t> counts = {0, 5, 0};
  const at::Tensor rows = at::arange(20, at::kFloat).view({5, 4});
  const int64_t own = counts.at(static_cast<size_t>(mesh.rank()));
  PendingRows gather = group.gather_rows(rows.narrow(0, 0, own), counts, "rows");
  PendingRows sum = group.sum_rows(rows * static_cast<double>(mesh.rank() + 1), counts, "rows");
  EXPECT_TRUE(gather.wait().equal(rows));
  EXPECT_TRUE(sum.wait().equal(rows.narrow(0, 0, own) * 6));
}

TEST(DeviceTransport, GathersAndReductionsGoThroughTheDevicesBackends) {
  std::atomic<int> made = 0;
  run(3, at::kCPU, &made, [](Mesh& mesh) {
    Group& group = mesh.group("shard");
    group.set_piece_numbers(30);
    const auto mine = static_cast<float>(mesh.rank());
    for (int round = 0; round < 3; ++round) {
      at::Tensor gathered = at::empty({3 * 5}), reduced = at::empty({100});
      Pending gather = group.all_gather(gathered, at::full({5}, mine), "unit");
      Pending reduce = group.reduce_scatter(reduced, at::full({300}, 1 + mine), at::kFloat, "unit");
      reduce.wait();
      gather.wait();
      EXPECT_TRUE(gathered.view({3, 5}).equal(at::arange(3).to(at::kFloat).view({3, 1}).expand({3, 5})));
      EXPECT_TRUE(reduced.equal(at::full({100}, 6.0F)));
    }
    expect_unequal_rows(mesh);
  });
  EXPECT_EQ(made, 6);  // of each rank one for gathers and one for exchanges; none of the world
}

// The host's transport, with a copy before and behind. Two groups of operations are under way at once.
TEST(StagedTransport, GathersAndReductionsHaveTheSumsOfTheRanks) {
  run_over(
      3,
      [](int rank, const Store& own) {
        return staged_transport(
            gloo_transport(own, rank, 3, "127.0.0.1", {.timeout = std::chrono::seconds(30)}), at::kCPU);
      },
      [](Mesh& mesh) {
        Group& group = mesh.group("shard");
        group.set_piece_numbers(30);
        const auto mine = static_cast<float>(mesh.rank());
        for (int round = 0; round < 3; ++round) {
          at::Tensor gathered = at::empty({3 * 5}), reduced = at::empty({100}), given = at::full({5}, mine);
          Pending gather = group.all_gather(gathered, given, "unit");
          given.fill_(-1);  // it was copied when the operation began
          Pending reduce = group.reduce_scatter(reduced, at::full({300}, 1 + mine), at::kFloat, "unit");
          reduce.wait();
          gather.wait();
          EXPECT_TRUE(gathered.view({3, 5}).equal(at::arange(3).to(at::kFloat).view({3, 1}).expand({3, 5})));
          EXPECT_TRUE(reduced.equal(at::full({100}, 6.0F)));
        }
        expect_unequal_rows(mesh);
      });
}

// Timing must not decide when a piece starts: two ranks could start kernels in different orders.
TEST(DeviceTransport, PiecesFollowInWaitAlone) {
  std::atomic<int> made = 0;
  run(2, at::kCPU, &made, [](Mesh& mesh) {
    Group& group = mesh.group("shard");
    group.set_piece_numbers(4);
    at::Tensor reduced = at::empty({40});
    Pending reduce = group.reduce_scatter(reduced, at::ones({80}), at::kFloat, "unit");
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_FALSE(reduce.advance());
    reduce.wait();
    EXPECT_TRUE(reduced.equal(at::full({40}, 2.0F)));
  });
}

// Control messages and other tensors of the host stay on its transport: no backend is made for them.
TEST(DeviceTransport, WhatLiesInTheHostsMemoryTakesTheHostsWay) {
  std::atomic<int> made = 0;
  run(2, at::kCUDA, &made, [](Mesh& mesh) {
    EXPECT_EQ(mesh.world().transport_name(), "NCCL");
    EXPECT_EQ(mesh.world().all_gather_text("word", "t"), (std::vector<std::string>{"word", "word"}));
    at::Tensor values = at::full({3}, 2.0, at::kDouble);
    mesh.world().all_reduce(values, "t");
    EXPECT_TRUE(values.equal(at::full({3}, 4.0, at::kDouble)));  // the pretended others send the same
  });
  EXPECT_EQ(made, 0);
}

}  // namespace
}  // namespace tessera::mesh
