// SPDX-License-Identifier: Apache-2.0
#include "tessera/mesh/mesh.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "../error_text.h"
#include "ranks.h"
#include "tessera/base/random.h"

namespace tessera {
namespace {

using mesh::Mesh;
using testing::run_ranks;

// Every rank's contribution has a closed form, so every result does.
TEST(Collectives, GridOfRanksAndSizes) {
  for (const int64_t world : {1, 2, 3, 5}) {
    run_ranks({{"shard", world}}, [&](Mesh& mesh) {
      mesh::Group& group = mesh.group("shard");
      const int64_t rank = group.rank();
      for (const int64_t n : {1, 4, 100, 10001}) {
        at::Tensor gathered = at::empty({world * n});
        group.all_gather(gathered, at::full({n}, static_cast<float>(rank + 1)), "t").wait();
        for (int64_t r = 0; r < world; ++r) {
          EXPECT_TRUE(gathered.narrow(0, r * n, n).eq(static_cast<float>(r + 1)).all().item<bool>());
        }
        at::Tensor sum = at::empty({n});
        const at::Tensor input = at::arange(world * n, at::kFloat) * static_cast<float>(rank + 1);
        group.reduce_scatter(sum, input, at::kFloat, "t").wait();
        const float factor = static_cast<float>(world * (world + 1)) / 2.0F;
        EXPECT_TRUE(at::allclose(sum, at::arange(rank * n, (rank + 1) * n, at::kFloat) * factor));
      }
      at::Tensor values = at::tensor({static_cast<double>(rank), 1.0}, at::kDouble);
      group.all_reduce(values, "t");
      EXPECT_EQ(values[0].item<double>(), static_cast<double>(world * (world - 1)) / 2.0);
      EXPECT_EQ(values[1].item<double>(), static_cast<double>(world));
      const auto texts = group.all_gather_text(std::string(static_cast<size_t>(rank), 'x'), "t");
      ASSERT_EQ(texts.size(), static_cast<size_t>(world));
      for (size_t r = 0; r < texts.size(); ++r) EXPECT_EQ(texts[r], std::string(r, 'x'));
    });
  }
}

TEST(Collectives, BytesSentAreTheMinimum) {
  const int64_t world = 3, n = 1000;
  run_ranks({{"shard", world}}, [&](Mesh& mesh) {
    mesh::Group& group = mesh.group("shard");
    at::Tensor full = at::ones({world * n}), part = at::ones({n});
    group.all_gather(full, part, "t").wait();
    group.reduce_scatter(part, full, at::kFloat, "t").wait();
    EXPECT_EQ(group.traffic().at("all_gather").bytes_sent, (world - 1) * n * 4);
    EXPECT_EQ(group.traffic().at("reduce_scatter").bytes_sent, (world - 1) * n * 4);
    at::Tensor half = at::ones({world * n}, at::kBFloat16);
    group.reduce_scatter(part, half, at::kBFloat16, "t").wait();
    EXPECT_EQ(group.traffic().at("reduce_scatter").bytes_sent, (world - 1) * n * 6);
    EXPECT_EQ(part[0].item<float>(), 3.0F);
    group.reduce_scatter(part, half, at::kFloat, "t").wait();  // widened where it arrives
    EXPECT_EQ(group.traffic().at("reduce_scatter").bytes_sent, (world - 1) * n * 8);
    EXPECT_EQ(part[0].item<float>(), 3.0F);
  });
}

/// Sums of random numbers: only one order of adding gives these bits.
at::Tensor random_input(int64_t rank, int64_t numel) {
  at::Tensor input = at::empty({numel});
  fill_normal(static_cast<uint64_t>(rank), 0, {input.data_ptr<float>(), static_cast<size_t>(numel)}, 0.0F,
              1.0F, 9.0F);
  return input;
}

// Whatever the pieces, the bits and the bytes are those of one piece.
TEST(Collectives, ReductionInPiecesIsBitwiseThatOfOne) {
  const int64_t n = 1001;
  for (const int64_t world : {2, 3}) {
    for (const auto& [given, wire] : {std::pair(at::kFloat, at::kFloat), std::pair(at::kFloat, at::kBFloat16),
                                      std::pair(at::kBFloat16, at::kFloat)}) {
      const at::ScalarType travels = given == wire ? wire : at::kBFloat16;
      run_ranks({{"shard", world}}, [&](Mesh& mesh) {
        mesh::Group& group = mesh.group("shard");
        at::Tensor expected = at::zeros({n});
        for (int64_t r = 0; r < world; ++r) {
          expected.add_(random_input(r, world * n).to(travels).narrow(0, mesh.rank() * n, n));
        }
        for (const int64_t piece : {int64_t{1} << 25, world * n, world * n - 1, int64_t{700}, int64_t{64}}) {
          group.set_piece_numbers(piece);
          const int64_t before =
              group.traffic().empty() ? 0 : group.traffic().at("reduce_scatter").bytes_sent;
          at::Tensor found = at::empty({n});
          mesh::Pending sum =
              group.reduce_scatter(found, random_input(mesh.rank(), world * n).to(given), wire, "t");
          // Gathers in between, and progress made at other moments on every rank.
          at::Tensor gathered = at::empty({world * 2});
          for (int64_t i = 0; i < 3; ++i) {
            if (i != mesh.rank()) sum.advance();
            group.all_gather(gathered, at::full({2}, static_cast<float>(i)), "t").wait();
          }
          sum.wait();
          EXPECT_FALSE(sum.active());
          EXPECT_TRUE(found.equal(expected)) << "piece " << piece;
          EXPECT_EQ(group.traffic().at("reduce_scatter").bytes_sent - before,
                    n * (world - 1) * static_cast<int64_t>(at::elementSize(travels)));
        }
      });
    }
  }
}

TEST(Collectives, AdvanceEndsAReductionWithoutWaiting) {
  const auto mesh = Mesh::pretend(1, {{"shard", 4}});
  mesh::Group& group = mesh->group("shard");
  group.set_piece_numbers(16);
  at::Tensor sum = at::zeros({100});
  mesh::Pending pending = group.reduce_scatter(sum, at::ones({400}), at::kFloat, "t");
  EXPECT_TRUE(pending.advance());
  EXPECT_TRUE(sum.eq(4).all().item<bool>());
  pending.wait();
  EXPECT_EQ(group.traffic().at("reduce_scatter").calls, 1);
}

TEST(Mesh, AxesAreRowMajor) {
  run_ranks({{"dp", 2}, {"shard", 2}}, [](Mesh& mesh) {
    EXPECT_EQ(mesh.coordinate("dp"), mesh.rank() / 2);
    EXPECT_EQ(mesh.coordinate("shard"), mesh.rank() % 2);
    EXPECT_EQ(mesh.group("tp").size(), 1);
    at::Tensor values = at::tensor({static_cast<double>(mesh.rank())}, at::kDouble);
    mesh.group("shard").all_reduce(values, "t");
    EXPECT_EQ(values.item<double>(), mesh.rank() < 2 ? 1.0 : 5.0);
  });
}

TEST(Mesh, ADifferentRecipeIsNamed) {
  uint16_t port = 0;
  const int fd = testing::listen_on_loopback(&port);
  std::vector<std::string> messages(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      mesh::Rendezvous rendezvous;
      rendezvous.rank = rank;
      rendezvous.world = 2;
      rendezvous.port = port;
      rendezvous.listen_fd = rank == 0 ? fd : -1;
      try {
        const Mesh mesh(rendezvous, {{"shard", 2}}, {{"the letter", rank == 0 ? "a" : "b", "choose one"}});
      } catch (const UserError& error) {
        messages[static_cast<size_t>(rank)] = error.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  for (const std::string& message : messages) {
    EXPECT_EQ(message, "[mesh.connect] ranks disagree on the letter: a on rank 0, b on rank 1 (choose one)");
  }
}

TEST(Mesh, ARankThatNeverComesIsNamed) {
  uint16_t port = 0;
  mesh::Rendezvous rendezvous;
  rendezvous.world = 3;
  rendezvous.listen_fd = testing::listen_on_loopback(&port);
  rendezvous.port = port;
  rendezvous.timeout = std::chrono::milliseconds(500);
  try {
    const Mesh mesh(rendezvous, {{"shard", 3}}, {});
    FAIL();
  } catch (const CommError& error) {
    EXPECT_NE(std::string(error.what()).find("while waiting for rank 1, 2 of 3"), std::string::npos)
        << error.what();
  }
}

TEST(Mesh, APortInUseIsNamed) {
  mesh::Rendezvous rendezvous;
  rendezvous.world = 2;
  uint16_t port = 0;
  testing::listen_on_loopback(&port);
  rendezvous.port = port;
  try {
    const Mesh mesh(rendezvous, {{"shard", 2}}, {});
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find(concat("port ", port, " for the rendezvous is in use")),
              std::string::npos)
        << error.what();
  }
}

TEST(Mesh, PretendRepeatsItsOwnShard) {
  const auto mesh = Mesh::pretend(3, {{"shard", 128}});
  at::Tensor full = at::zeros({512});
  mesh->group("shard").all_gather(full, at::ones({4}), "t").wait();
  EXPECT_EQ(full.sum().item<float>(), 512.0F);
  EXPECT_EQ(mesh->group("shard").traffic().at("all_gather").bytes_sent, 127 * 16);
}

TEST(WholeTensors, AreBroadcastAndSummedInAnyDtypeAndSize) {
  for (const bool shared : {true, false}) {
    for (const int64_t world : {1, 2, 3}) {
      testing::run_ranks(
          {{"shard", world}},
          [&](mesh::Mesh& mesh) {
            mesh::Group& group = mesh.world();
            for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kLong, at::kInt,
                                     at::kByte, at::kBool, at::kComplexFloat}) {
              for (const int64_t numel : {0, 1, 7, 1000}) {
                const auto of_rank = [&](int64_t rank) {
                  return (at::arange(numel).remainder(5) + rank).to(dtype).view({1, numel});
                };
                at::Tensor values = of_rank(mesh.rank()), total = of_rank(0);
                group.broadcast(values, world - 1, "values");
                EXPECT_TRUE(values.equal(of_rank(world - 1))) << dtype << " " << numel;
                values = of_rank(mesh.rank());
                group.sum(values, "values");
                for (int64_t rank = 1; rank < world; ++rank) total = total + of_rank(rank);
                EXPECT_TRUE(values.equal(total)) << dtype << " " << numel;
              }
            }
            at::Tensor scalar = at::full({}, static_cast<double>(mesh.rank()));
            group.broadcast(scalar, 0, "scalar");
            EXPECT_EQ(scalar.item<double>(), 0);
            at::Tensor turned = at::zeros({2, 3}).t();
            EXPECT_EQ(
                error_text([&] { group.sum(turned, "turned"); }),
                "[mesh.sum] the tensor of turned is not contiguous; pass values.contiguous() and copy the "
                "result back");
            EXPECT_EQ(error_text([&] { group.broadcast(scalar, world, "scalar"); }),
                      concat("[mesh.broadcast] the root of scalar is rank ", world,
                             ": expected a rank of the group, 0 to ", world - 1));
          },
          std::chrono::seconds(30), shared);
    }
  }
}

// Larger than what travels at once.
TEST(WholeTensors, AreBroadcastAndSummedInWindows) {
  testing::run_ranks({{"shard", 2}}, [&](mesh::Mesh& mesh) {
    at::Tensor values = at::arange(5'000'011).to(at::kFloat) * static_cast<double>(mesh.rank() + 1);
    at::Tensor sent = values.clone();
    mesh.world().broadcast(sent, 1, "large");
    EXPECT_TRUE(sent.equal(at::arange(5'000'011).to(at::kFloat) * 2));
    mesh.world().sum(values, "large");
    EXPECT_TRUE(values.equal(at::arange(5'000'011).to(at::kFloat) + sent));
  });
}

}  // namespace
}  // namespace tessera
