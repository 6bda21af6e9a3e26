// SPDX-License-Identifier: Apache-2.0
#include "tessera/mesh/mesh.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "../error_text.h"
#include "ranks.h"
#include "tessera/base/random.h"
#include "tessera/mesh/transport.h"

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
// Ranks that move two reductions on in different orders: a piece of the second must not take the place of one
// of the first.
TEST(Collectives, ReductionsInPiecesKeepTheirOrder) {
  const int64_t n = 64;
  for (const bool shared_memory : {true, false}) {
    run_ranks(
        {{"shard", 2}},
        [&](Mesh& mesh) {
          mesh::Group& group = mesh.group("shard");
          group.set_piece_numbers(16);
          const auto expected = [&](int64_t seed) {
            return (random_input(seed, 2 * n) + random_input(seed + 1, 2 * n)).narrow(0, mesh.rank() * n, n);
          };
          at::Tensor first = at::empty({n}), second = at::empty({n});
          const auto reduce = [&](at::Tensor& sum, int64_t seed, const char* what) {
            return group.reduce_scatter(sum, random_input(seed + mesh.rank(), 2 * n), at::kFloat, what);
          };
          mesh::Pending one = reduce(first, 0, "first"), other = reduce(second, 2, "second");
          for (int i = 0; i < 50; ++i) {
            mesh.rank() == 0 ? other.advance() : one.advance();
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
          }
          one.wait();
          other.wait();
          EXPECT_TRUE(first.equal(expected(0)));
          EXPECT_TRUE(second.equal(expected(2)));
        },
        std::chrono::milliseconds(10'000), shared_memory);
  }
}

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

/// Every span of more than one rank that tiles `world` ranks.
std::vector<mesh::Span> all_spans(int64_t world) {
  std::vector<mesh::Span> spans;
  for (int64_t stride = 1; stride < world; ++stride) {
    for (int64_t size = 2; stride * size <= world; ++size) {
      if (world % (stride * size) == 0) spans.push_back({stride, size});
    }
  }
  return spans;
}

/// Collectives of the group against what its ranks, by `ranks_of`, must give.
void expect_collectives(mesh::Group& group, const std::vector<int64_t>& ranks, int64_t own) {
  constexpr int64_t kValues = 101;
  const auto size = static_cast<int64_t>(ranks.size());
  ASSERT_EQ(group.size(), size);
  ASSERT_EQ(ranks.at(static_cast<size_t>(group.rank())), own);
  at::Tensor gathered = at::empty({size, kValues});
  group.all_gather(gathered.view({-1}), at::full({kValues}, static_cast<float>(own)), "t").wait();
  at::Tensor sum = at::empty({kValues});
  const at::Tensor input = at::arange(size, at::kFloat).view({size, 1}).expand({size, kValues}) +
                           100.0F * static_cast<float>(own + 1);
  group.reduce_scatter(sum, input.contiguous().view({-1}), at::kFloat, "t").wait();
  double expected_sum = 0;
  for (size_t i = 0; i < ranks.size(); ++i) {
    EXPECT_TRUE(gathered[static_cast<int64_t>(i)].eq(static_cast<float>(ranks[i])).all().item<bool>());
    expected_sum += static_cast<double>(group.rank()) + 100.0 * static_cast<double>(ranks[i] + 1);
  }
  EXPECT_TRUE(sum.eq(expected_sum).all().item<bool>());
  EXPECT_EQ(group.traffic().at("all_gather").bytes_sent, (size - 1) * kValues * 4);
  EXPECT_EQ(group.traffic().at("reduce_scatter").bytes_sent, (size - 1) * kValues * 4);
}

TEST(Spans, CollectivesOfEverySpan) {
  for (const int64_t world : {2, 3, 4, 6}) {
    for (const bool shared_memory : {true, false}) {
      SCOPED_TRACE(concat(world, " ranks, shared memory ", shared_memory));
      const auto spans = all_spans(world);
      const auto body = [&](Mesh& mesh) {
        for (const mesh::Span& span : spans)
          expect_collectives(mesh.group(span), plan::ranks_of(span, mesh.rank()), mesh.rank());
        EXPECT_EQ(mesh.groups().size(), spans.size() + 1) << "and world()";
      };
      run_ranks({{"all", world}}, body, std::chrono::seconds(30), shared_memory, spans);
    }
  }
}

TEST(Spans, AxesAndSpansShareGroupsThatAreMadeOnce) {
  std::vector<std::string> made;
  const auto make = [&](const std::string& key, int64_t rank, int64_t size) {
    made.push_back(concat(key, " as ", rank, " of ", size));
    return mesh::pretend_transport(rank, size);
  };
  const auto mesh =
      Mesh::over(5, {{"dp", 4}, {"shard", 2}}, make, {{4, 2}, {1, 2}, {2, 2}, {4, 2}, {1, 1}, {3, 1}});
  const std::vector<std::string> expected = {"world as 5 of 8", "span/1/2/4 as 1 of 2",
                                             "span/2/2/5 as 0 of 2", "span/2/4/1 as 2 of 4",
                                             "span/4/2/1 as 1 of 2"};
  EXPECT_EQ(made, expected) << "in sorted order";
  EXPECT_EQ(&mesh->group("shard"), &mesh->group(mesh::Span{1, 2}));
  EXPECT_EQ(&mesh->group("dp"), &mesh->group(mesh::Span{2, 4}));
  EXPECT_EQ(&mesh->group(mesh::Span{1, 8}), &mesh->world()) << "no group was asked for";
  EXPECT_EQ(mesh->group(mesh::Span{1, 1}).size(), 1);
  std::vector<std::string> names;
  for (const mesh::Group* group : mesh->groups()) names.push_back(group->name());
  const std::vector<std::string> named = {"shard", "ranks 5,7 (stride 2)", "dp", "ranks 1,5 (stride 4)",
                                          "world"};
  EXPECT_EQ(names, named);
  EXPECT_EQ(made, expected) << "nothing was made since";
  EXPECT_THROW(mesh->group(mesh::Span{1, 4}), InternalError);
}

TEST(Spans, ActivationsHaveAGroupOfTheirOwn) {
  const std::vector<mesh::Axis> axes = {{"shard", 2}, {"tensor", 2}};
  const auto both = Mesh::pretend(1, axes, {{1, 2}, {1, 2, true}});
  EXPECT_NE(&both->group(mesh::Span{1, 2}), &both->group(mesh::Span{1, 2, true}));
  EXPECT_EQ(&both->group("tensor"), &both->group(mesh::Span{1, 2}));
  EXPECT_EQ(both->groups().size(), 4U) << "these, shard, world";
  // An axis adds no group beside that of its activations.
  const auto alone = Mesh::pretend(1, axes, {{1, 2, true}});
  EXPECT_EQ(&alone->group("tensor"), &alone->group(mesh::Span{1, 2, true}));
  EXPECT_EQ(alone->group("tensor").name(), "tensor");
  EXPECT_EQ(alone->groups().size(), 3U);
}

TEST(Spans, ErrorsNameTheRanks) {
  const auto make = [](const std::string&, int64_t rank, int64_t size) {
    return mesh::pretend_transport(rank, size, [](mesh::Movement, const at::Tensor&, const at::Tensor&) {
      throw std::runtime_error("broken");
    });
  };
  const auto mesh = Mesh::over(5, {{"dp", 4}, {"shard", 2}}, make, {{4, 2}});
  const auto text = [](mesh::Group& group) -> std::string {
    try {
      group.all_gather(at::empty({4 * group.size()}), at::ones({4}), "stem").wait();
    } catch (const CommError& error) {
      return error.what();
    }
    return "no error";
  };
  const auto expect_over = [&](mesh::Group& group, const std::string& name) {
    const std::string start = concat("[mesh.all_gather stem over ", name, "] broken");
    EXPECT_TRUE(text(group).starts_with(start)) << text(group);
  };
  expect_over(mesh->group(mesh::Span{4, 2}), "ranks 1,5 (stride 4)");
  expect_over(mesh->group("dp"), "axis dp (ranks 1,3,5,7 (stride 2))");
  expect_over(mesh->group("shard"), "axis shard (ranks 4,5)");
  expect_over(mesh->world(), "axis world");
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

// Ranks 2 and 3 give no sign of life, and rank 0 has failed. Rank 1 is alive, but waits for rank 0: it is
// told, and says so before rank 0 names those that are silent.
TEST(Mesh, ARankThatWaitsForAFailedOneIsNotCalledSilent) {
  for (const bool shared_memory : {true, false}) {
    SCOPED_TRACE(shared_memory ? "shared memory" : "TCP");
    std::string found, waiting;
    EXPECT_THROW(run_ranks(
                     {{"shard", 2}, {"tensor", 2}},
                     [&](Mesh& mesh) {
                       at::Tensor value = at::ones({1}, at::kDouble);
                       if (mesh.rank() == 0) {
                         found = mesh.name_silent_ranks(std::chrono::milliseconds(2'000));
                       } else if (mesh.rank() == 1) {
                         try {
                           mesh.group("tensor").all_reduce(value, "value");
                         } catch (const CommError& error) {
                           waiting = mesh.explain(error, "here").what();
                         }
                       }
                       throw CommError("the end");
                     },
                     std::chrono::milliseconds(30'000), shared_memory),
                 CommError);
    EXPECT_TRUE(found.starts_with("no sign of life from rank 2, 3")) << found;
    EXPECT_TRUE(waiting.starts_with(
        "[mesh.all_reduce value over axis tensor (ranks 0,1)] no sign of life from rank 2, 3: "))
        << waiting;
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

// Latency and bytes / rate, one message of a group behind the other.
TEST(Mesh, PretendedMessagesTakeTime) {
  using Clock = std::chrono::steady_clock;
  const std::vector<mesh::Axis> axes = {{"shard", 4}, {"tensor", 2}};
  const auto mesh = Mesh::pretend(0, axes, {}, {}, {.latency = 0.05, .bytes_per_second = 1e6});
  at::Tensor of_four = at::empty({40'000}), more = at::empty({40'000}), of_two = at::empty({50'000});
  const auto start = Clock::now();
  const auto since = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  mesh::Pending first = mesh->group("shard").all_gather(of_four, at::ones({10'000}), "t");  // 120 kB arrive
  mesh::Pending second = mesh->group("shard").all_gather(more, at::ones({10'000}), "t");
  mesh::Pending other = mesh->group("tensor").all_gather(of_two, at::ones({25'000}), "t");  // 100 kB
  EXPECT_FALSE(other.advance());
  other.wait();
  EXPECT_GE(since(), 0.1 + 0.05);
  first.wait();
  EXPECT_GE(since(), 0.12 + 0.05);
  EXPECT_FALSE(second.advance());
  second.wait();
  EXPECT_GE(since(), 2 * 0.12 + 0.05);
  EXPECT_LT(since(), 2 * 0.12 + 0.05 + 0.5)
      << "messages of two groups wait for each other, or the machine stood still";
  EXPECT_EQ(of_two.sum().item<float>(), 50'000.0F);
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

// A transport of the host's memory would read addresses of the device.
TEST(WholeTensors, OfADeviceThatIsNotConnectedAreRefused) {
  testing::run_ranks({{"shard", 2}}, [&](mesh::Mesh& mesh) {
    mesh::Group& world = mesh.world();
    EXPECT_TRUE(world.moves(at::kCPU));
    EXPECT_FALSE(world.moves(at::kMeta));
    at::Tensor values = at::zeros({4}, at::TensorOptions().device(at::kMeta));
    const std::string error =
        "[mesh.collective] the tensor of values is on meta, but the ranks were connected to exchange tensors "
        "in "
        "host memory; choose the GPU before connecting (library::ConnectOptions::device), or pass "
        "values.cpu()";
    EXPECT_EQ(error_text([&] { world.sum(values, "values"); }), error);
    EXPECT_EQ(error_text([&] { world.broadcast(values, 0, "values"); }), error);
    EXPECT_EQ(error_text([&] { world.all_reduce(values, "values"); }), error);
    EXPECT_EQ(error_text([&] { world.all_gather(values, values.narrow(0, 0, 2), "values"); }), error);
    EXPECT_EQ(error_text([&] { world.reduce_scatter(values.narrow(0, 0, 2), values, at::kFloat, "values"); }),
              error);
    EXPECT_EQ(error_text([&] { world.gather_rows(values, std::vector<int64_t>{4, 4}, "values"); }), error);
  });
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
