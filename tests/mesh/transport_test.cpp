// SPDX-License-Identifier: Apache-2.0
// What both transports between processes owe their users, and what the shared memory owes besides.
#include <ATen/ATen.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <future>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "ranks.h"
#include "tessera/base/file.h"
#include "tessera/mesh/gloo_fault.h"
#include "tessera/mesh/shared_segment.h"
#include "tessera/mesh/shared_transport.h"

namespace tessera {
namespace {

using mesh::Mesh;
using testing::run_ranks;
using namespace std::chrono_literals;

class Transports : public ::testing::TestWithParam<bool> {
 protected:
  void run(int64_t world, const std::function<void(Mesh&)>& body, std::chrono::milliseconds timeout = 30s) {
    run_ranks({{"shard", world}}, body, timeout, GetParam());
  }
};

TEST(GlooFault, IsOneLineThatNamesTheLengths) {
  const std::string text = mesh::gloo_fault_text(
      "[enforce fail at /x/gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 320 vs 20. "
      "Received "
      "data size doesn't match");
  EXPECT_TRUE(
      text.starts_with("[mesh.gloo] ranks are in different collectives: a message of 320 bytes came where "
                       "this rank expected 20: expected the same calls on every rank, "))
      << text;
  EXPECT_EQ(mesh::gloo_fault_text("[enforce fail at /x/gloo/transport/tcp/pair.cc:1] another\n"),
            "[mesh.gloo] [enforce fail at /x/gloo/transport/tcp/pair.cc:1] another\\n");
  EXPECT_EQ(mesh::gloo_fault_text("vector::_M_range_check"), "");
}

TEST_P(Transports, AreTheOneThatWasAskedFor) {
  run(2, [](Mesh& mesh) { EXPECT_EQ(mesh.world().transport_name(), GetParam() ? "shared memory" : "TCP"); });
  run(1, [](Mesh& mesh) { EXPECT_EQ(mesh.world().transport_name(), "nothing"); });
}

/// Element i of what rank `from` sends rank `to` (of a gather: to anyone) in operation `number`.
at::Tensor sent(int64_t number, int64_t from, int64_t to, int64_t n) {
  return (at::arange(n, at::kInt) * 31 + number * 7 + from * 1009 + to * 10007).to(at::kInt);
}

// Sizes around a message's and around all slots', several under way, ended in another order than begun.
TEST_P(Transports, SeveralOperationsOfAnySizeUnderWay) {
  const int64_t slot = mesh::kSlotBytes / 4;
  const std::vector<int64_t> sizes = {1, slot - 1, slot, 5 * slot + 3, (mesh::kSlots + 3) * slot, 0, 17};
  for (const int64_t world : {2, 3}) {
    run(world, [&](Mesh& mesh) {
      mesh::Group& group = mesh.group("shard");
      std::vector<at::Tensor> gathered, summed;
      std::vector<mesh::Pending> pending;
      for (size_t i = 0; i < sizes.size(); ++i) {
        const auto number = static_cast<int64_t>(i);
        gathered.push_back(at::empty({world * sizes[i]}, at::kInt));
        pending.push_back(group.all_gather(gathered[i], sent(number, mesh.rank(), 0, sizes[i]), "t"));
        std::vector<at::Tensor> rows;
        for (int64_t to = 0; to < world; ++to) rows.push_back(sent(number, mesh.rank(), to, sizes[i]));
        summed.push_back(at::empty({sizes[i]}));
        pending.push_back(group.reduce_scatter(summed[i], at::cat(rows).to(at::kFloat), at::kFloat, "t"));
      }
      // Ranks wait in orders of their own: what one does not wait for yet must move on all the same.
      if (mesh.rank() % 2 == 0) std::reverse(pending.begin(), pending.end());
      for (auto& operation : pending) operation.wait();
      for (size_t i = 0; i < sizes.size(); ++i) {
        const auto number = static_cast<int64_t>(i);
        at::Tensor sum = at::zeros({sizes[i]});
        for (int64_t from = 0; from < world; ++from) {
          EXPECT_TRUE(
              gathered[i].narrow(0, from * sizes[i], sizes[i]).equal(sent(number, from, 0, sizes[i])));
          sum.add_(sent(number, from, mesh.rank(), sizes[i]).to(at::kFloat));
        }
        EXPECT_TRUE(summed[i].equal(sum)) << "size " << sizes[i];
      }
    });
  }
}

TEST_P(Transports, ABusyRankIsWaitedForWhileItAdvances) {
  for (const bool advances : {true, false}) {
    bool timed_out = false;
    const auto body = [&](Mesh& mesh) {
      const auto start = std::chrono::steady_clock::now();
      mesh.note_progress();  // at the beginning, as every rank does; its own do not count
      if (mesh.rank() == 1) {
        for (int i = 0; i < 25; ++i) {
          std::this_thread::sleep_for(100ms);
          if (advances) mesh.note_progress();
        }
      }
      try {
        mesh.world().barrier("busy");
      } catch (const CommError& error) {
        if (mesh.rank() == 0) {
          timed_out = true;
          EXPECT_LT(std::chrono::steady_clock::now() - start, 1900ms)
              << "the time began anew without progress";
          EXPECT_NE(std::string(error.what()).find("no answer within 1 s"), std::string::npos)
              << error.what();
        }
        throw;
      }
    };
    if (advances) {
      run(2, body, 1s);
    } else {
      EXPECT_THROW(run(2, body, 1s), CommError);
    }
    EXPECT_EQ(timed_out, !advances);
  }
}

// A large operation of one group is under way on both ranks while they meet in another group.
TEST_P(Transports, OneGroupDoesNotHoldUpAnother) {
  run(2, [](Mesh& mesh) {
    const int64_t n = 3 * mesh::kSlots * mesh::kSlotBytes / 4;
    at::Tensor gathered = at::empty({2 * n});
    auto pending =
        mesh.group("shard").all_gather(gathered, at::full({n}, static_cast<float>(mesh.rank())), "t");
    if (mesh.rank() == 0) pending.wait();
    mesh.world().barrier("between");
    pending.wait();
    EXPECT_EQ(gathered.sum().item<float>(), static_cast<float>(n));
  });
}

TEST_P(Transports, ASilentRankIsATimeout) {
  try {
    run(
        2,
        [](Mesh& mesh) {
          if (mesh.rank() == 1) {
            std::this_thread::sleep_for(3s);
            throw std::runtime_error("came too late");
          }
          mesh.world().barrier("waiting");
        },
        1s);
    FAIL() << "a wait without an end";
  } catch (const CommError& error) {
    EXPECT_NE(std::string(error.what()).find("[mesh.all_gather_text waiting over axis world]"),
              std::string::npos)
        << error.what();
  }
}

// After a wait that failed the messages of the ranks no longer belong together: what came of it would be
// garbage.
TEST_P(Transports, AGroupThatFailedStaysSo) {
  std::atomic<int> failed = 0;
  try {
    run(
        2,
        [&](Mesh& mesh) {
          if (mesh.rank() == 1) std::this_thread::sleep_for(2s);
          for (int i = 0; i < 3; ++i) {
            try {
              const std::string text(mesh.rank() == 0 ? 3 : 70'000, 'x');
              const auto texts = mesh.world().all_gather_text(text, "late");
              EXPECT_EQ(texts[0].size(), 3U);
              EXPECT_EQ(texts[1].size(), 70'000U);
            } catch (const CommError&) {
              if (mesh.rank() == 0) ++failed;
            }
          }
        },
        1s);
  } catch (const CommError&) {  // the barrier at the end
  }
  EXPECT_EQ(failed, 3);
}

INSTANTIATE_TEST_SUITE_P(Both, Transports, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "shared_memory" : "tcp"; });

// Sums and exchanges are one sequence of messages: neither overtakes the other.
TEST(SharedMemory, SumsAndExchangesMix) {
  constexpr int64_t kWorld = 3;
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const int64_t slot = mesh::kSlotBytes / 4;
  const std::vector<int64_t> sizes = {
      5, slot, 2 * mesh::kSlots * slot, slot / 3, 1, 7 * slot, 3 * slot + 1, 9, 0, 0};
  const auto dtypes = std::array{at::kFloat, at::kFloat, at::kBFloat16, at::kBFloat16, at::kHalf,
                                 at::kFloat, at::kFloat, at::kDouble,   at::kFloat,    at::kFloat};
  std::vector<std::future<void>> ranks;
  for (int64_t rank = 0; rank < kWorld; ++rank) {
    ranks.push_back(std::async(std::launch::async, [&, rank] {
      const auto all = std::make_shared<mesh::SharedTransports>();
      const auto transport = mesh::shared_transport(store, rank, kWorld, true, {.timeout = 30s}, all);
      ASSERT_NE(transport, nullptr);
      std::vector<at::Tensor> outputs;
      std::vector<mesh::Waiter> waiters;
      const auto row = [&](size_t i, int64_t from, int64_t to, int64_t n) {
        return sent(static_cast<int64_t>(i), from, to, n).to(dtypes.at(i));
      };
      for (size_t i = 0; i < sizes.size(); ++i) {
        std::vector<at::Tensor> rows;
        for (int64_t to = 0; to < kWorld; ++to) rows.push_back(row(i, rank, to, sizes[i]));
        const at::Tensor input = at::cat(rows);
        const bool sums = i % 2 == 1;
        const auto of_sum = dtypes.at(i) == at::kDouble ? at::kDouble : at::kFloat;
        outputs.push_back(sums ? at::empty({sizes[i]}, of_sum) : at::empty_like(input));
        waiters.push_back(sums ? transport->reduce_scatter(outputs[i], input).value()
                               : transport->all_to_all(outputs[i], input));
      }
      if (rank == 1) std::reverse(waiters.begin(), waiters.end());
      for (const mesh::Waiter& waiter : waiters) waiter.wait();
      for (size_t i = 0; i < sizes.size(); ++i) {
        std::vector<at::Tensor> rows;
        for (int64_t from = 0; from < kWorld; ++from) rows.push_back(row(i, from, rank, sizes[i]));
        at::Tensor expected = at::cat(rows);
        if (i % 2 == 1) {
          expected = rows[0].to(outputs[i].scalar_type());
          for (size_t from = 1; from < rows.size(); ++from) expected.add_(rows[from]);
        }
        EXPECT_TRUE(outputs[i].equal(expected)) << "operation " << i << ", rank " << rank;
      }
    }));
  }
  for (auto& rank : ranks) rank.get();
}

TEST(SharedMemory, AbortEndsTheWaitOfAllRanks) {
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THROW(run_ranks({{"shard", 2}},
                         [](Mesh& mesh) {
                           const auto group = mesh.another_group("saving");
                           if (mesh.rank() == 1) group->abort();
                           group->barrier("waiting");
                         }),
               CommError);
  EXPECT_LT(std::chrono::steady_clock::now() - start, 10s);
}

TEST(SharedSegment, MapsNothingButASegmentOfThisGroup) {
  const auto refusal = [](int fd, int64_t size, uint64_t token) -> std::string {
    try {
      mesh::SharedSegment(::getpid(), fd, size, token);
    } catch (const std::system_error& error) {
      return error.what();
    }
    return "mapped";
  };
  mesh::SharedSegment segment(2, 7);
  EXPECT_EQ(refusal(segment.fd(), 2, 7), "mapped");
  EXPECT_EQ(refusal(segment.fd(), 2, 8).rfind("the segment of a rank of another run", 0), 0U);
  EXPECT_EQ(refusal(segment.fd(), 200, 7).rfind("not a segment of a rank of this user", 0), 0U)
      << "another size";

  const TemporaryFolder folder("segment");
  const std::string path = (folder.path() / "memfd:tessera-ranks (deleted)").string();
  const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_EQ(::ftruncate(file, 1 << 24), 0);
  EXPECT_EQ(refusal(file, 2, 0).rfind("not a segment of a rank of this user", 0), 0U) << "a user's file";
  const int device = ::open("/dev/zero", O_RDWR | O_CLOEXEC);
  EXPECT_EQ(refusal(device, 2, 0).rfind("not a segment of a rank of this user", 0), 0U);
  const int unsealed = ::memfd_create("tessera-ranks", MFD_CLOEXEC);
  struct stat state {};
  ASSERT_EQ(::fstat(segment.fd(), &state), 0);
  ASSERT_EQ(::ftruncate(unsealed, state.st_size), 0);
  EXPECT_EQ(refusal(unsealed, 2, 0).rfind("the segment of a rank is not sealed", 0), 0U)
      << "it could be cut short";
  for (const int fd : {file, device, unsealed}) ::close(fd);
}

TEST(SharedMemory, RanksInDifferentCollectivesOfOneSizeFail) {
  try {
    run_ranks({{"shard", 2}}, [&](Mesh& mesh) {
      at::Tensor output = at::zeros({8}), input = at::zeros({4});
      mesh.group("shard").all_gather(output, input, mesh.rank() == 0 ? "blocks.0" : "blocks.1").wait();
    });
    FAIL() << "no error";
  } catch (const CommError& error) {
    EXPECT_NE(std::string(error.what()).find("ranks are in different operations: rank "), std::string::npos)
        << error.what();
  }
}

TEST(SharedMemory, RanksInDifferentOperationsFail) {
  for (const bool sums : {false, true}) {
    try {
      run_ranks({{"shard", 2}}, [&](Mesh& mesh) {
        mesh::Group& group = mesh.group("shard");
        const int64_t n = mesh.rank() == 0 ? 8 : 12;
        at::Tensor output = at::zeros({sums ? n : 2 * n}), input = at::zeros({sums ? 2 * n : n});
        (sums ? group.reduce_scatter(output, input, at::kFloat, "t") : group.all_gather(output, input, "t"))
            .wait();
      });
      FAIL() << "no error";
    } catch (const CommError& error) {
      EXPECT_NE(std::string(error.what()).find("ranks are in different operations: rank "), std::string::npos)
          << error.what();
    }
  }
}

TEST(SharedSegment, IsSharedWithAnotherProcessAndHasNoName) {
  constexpr uint64_t kToken = 0x1234'5678'9abc'def0;
  mesh::SharedSegment segment(2, kToken);
  const pid_t child = ::fork();
  if (child == 0) {
    mesh::SharedSegment same(::getppid(), segment.fd(), 2, kToken);
    same.slot(mesh::kExchanges, mesh::kSlots - 1)[mesh::kSlotBytes - 1] = std::byte{7};
    same.taken(mesh::kExchanges, 1).store(9);
    same.header().bell.fetch_add(1);
    mesh::wake(same.header().bell);
    ::_exit(0);
  }
  while (segment.header().bell.load() == 0) mesh::sleep_until_changed(segment.header().bell, 0, 1000);
  EXPECT_EQ(segment.slot(mesh::kExchanges, mesh::kSlots - 1)[mesh::kSlotBytes - 1], std::byte{7});
  EXPECT_EQ(segment.taken(mesh::kExchanges, 1).load(), 9U);
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_THROW(mesh::SharedSegment(::getpid(), 1 << 20, 2, kToken), std::system_error)
      << "no such file descriptor";
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    EXPECT_EQ(entry.path().string().find("tessera"), std::string::npos) << entry.path();
  }
}

TEST(WatchedProcess, IsSeenToEnd) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::pause();
    ::_exit(0);
  }
  const mesh::WatchedProcess watched(child);
  EXPECT_FALSE(watched.ended());
  ::kill(child, SIGKILL);
  for (int i = 0; i < 1000 && !watched.ended(); ++i) std::this_thread::sleep_for(10ms);
  EXPECT_TRUE(watched.ended()) << "not reaped yet, and ended all the same";
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
}

}  // namespace
}  // namespace tessera
