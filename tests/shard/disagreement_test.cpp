// SPDX-License-Identifier: Apache-2.0
// Ranks that do not do the same are told so.
#include <gtest/gtest.h>

#include <future>
#include <map>

#include "../error_text.h"
#include "../mesh/ranks.h"
#include "foreign_net.h"
#include "tessera/shard/fully_shard.h"

namespace tessera {
namespace {

using shard::FullyShardOptions;
using shard::Level;
using shard::ShardedModule;

struct Pair : torch::nn::Module {
  torch::nn::Linear first{nullptr}, second{nullptr};
  explicit Pair(int64_t width = 4, int64_t out = 4) {
    first = register_module("first", torch::nn::Linear(4, width));
    second = register_module("second", torch::nn::Linear(width, out));
  }
};

/// The error of wrapping on every rank; options and network depend on the rank.
void expect_refused(const std::function<std::shared_ptr<Pair>(int64_t)>& net,
                    const std::function<void(int64_t, FullyShardOptions&)>& change,
                    const std::string& expected) {
  testing::run_ranks({{"shard", 3}}, [&](mesh::Mesh& mesh) {
    FullyShardOptions options;
    options.policy = shard::by_type<torch::nn::Linear>();
    change(mesh.rank(), options);
    EXPECT_EQ(error_text([&] { ShardedModule(net(mesh.rank()), mesh, options); }), expected);
  });
}

TEST(Disagreement, IsNamedByRankAndUnitWhenANetworkIsWrapped) {
  const auto same = [](int64_t) { return std::make_shared<Pair>(); };
  const auto nothing = [](int64_t, FullyShardOptions&) {};
  expect_refused(
      [](int64_t rank) { return std::make_shared<Pair>(4, rank == 2 ? 5 : 4); }, nothing,
      "[shard.ShardedModule] unit second differs between ranks: rank 2 has 'second.weight [5, 4] Float', "
      "rank 0 'second.weight [4, 4] Float': expected the same network, policy and dtypes on every rank");
  expect_refused(
      [](int64_t rank) {
        auto net = std::make_shared<Pair>();
        if (rank == 1) net->first->bias.requires_grad_(false);
        return net;
      },
      nothing,
      "[shard.ShardedModule] unit first differs between ranks: rank 1 has 'first.bias [4] Float frozen', "
      "rank 0 'first.bias [4] Float': expected the same network, policy and dtypes on every rank");
  expect_refused(
      same,
      [](int64_t rank, FullyShardOptions& options) {
        if (rank == 1) options.policy = shard::no_units();
      },
      "[shard.ShardedModule] unit first differs between ranks: rank 1 has 'unit root: zero3', rank 0 'unit "
      "first: zero3': expected the same network, policy and dtypes on every rank");
  expect_refused(
      same,
      [](int64_t rank, FullyShardOptions& options) {
        if (rank == 2) options.precision.compute = at::kBFloat16;
      },
      "[shard.ShardedModule] unit first differs between ranks: rank 2 has 'unit first: zero3, compute "
      "BFloat16', rank 0 'unit first: zero3': expected the same network, policy and dtypes on every rank");
  expect_refused(
      same, [](int64_t, FullyShardOptions& options) { options.precision.reduce = at::kHalf; },
      "[shard.ShardedModule] precision.reduce is Half: expected float32, bfloat16 or float64");
}

TEST(Disagreement, OptionsAreNamed) {
  const auto differ = [](const std::function<void(FullyShardOptions&)>& change, const std::string& theirs,
                         const std::string& ours) {
    expect_refused([](int64_t) { return std::make_shared<Pair>(); },
                   [&](int64_t rank, FullyShardOptions& options) {
                     if (rank == 1) change(options);
                   },
                   "[shard.ShardedModule] unit (options) differs between ranks: rank 1 has '" + theirs +
                       "', rank 0 '" + ours +
                       "': expected the same network, policy and dtypes on every rank");
  };
  differ([](FullyShardOptions& o) { o.gradients = shard::Gradients::kSum; }, "gradients kSum",
         "gradients kMean");
  differ([](FullyShardOptions& o) { o.root_stays_gathered = false; }, "root_stays_gathered 0",
         "root_stays_gathered 1");
  differ([](FullyShardOptions& o) { o.reduce_every_micro_batch = false; }, "reduce_every_micro_batch 0",
         "reduce_every_micro_batch 1");
  differ([](FullyShardOptions& o) { o.prefetch = 0; }, "prefetch 0", "prefetch 1");
  differ([](FullyShardOptions& o) { o.units_in_flight = 3; }, "units_in_flight 3", "units_in_flight 0");
  differ([](FullyShardOptions& o) { o.bucket_bytes = 64; }, "bucket_bytes 64", "bucket_bytes 26214400");
  differ([](FullyShardOptions& o) { o.sync_initial_values = false; }, "sync_initial_values 0",
         "sync_initial_values 1");
  differ([](FullyShardOptions& o) { o.precision.buffer = at::kBFloat16; }, "precision.buffer BFloat16",
         "precision.buffer as it is");
}

/// What both of two ranks are told that call their units in different orders. Where the units are equally
/// large (out = 4), the wrong bytes arrive without a word.
void expect_order_refused(bool shared_memory, const std::string& expected, int64_t out = 4) {
  testing::run_ranks(
      {{"shard", 2}},
      [&](mesh::Mesh& mesh) {
        auto net = std::make_shared<Pair>(4, out);
        FullyShardOptions options;
        options.policy = shard::by_type<torch::nn::Linear>();
        ShardedModule sharded(net, mesh, options);
        std::string told = "no error";
        try {
          const at::Tensor loss = sharded.forward([&] {
            auto& layer = mesh.rank() == 0 ? net->first : net->second;
            return layer->forward(at::ones({1, 4})).sum();
          });
          loss.backward();
        } catch (const CommError& error) {
          told = error.what();
        }
        EXPECT_NE(told.find(expected), std::string::npos) << told;
        if (shared_memory) throw CommError("the groups cannot be used any more");
      },
      std::chrono::seconds(30), shared_memory);
}

// Bytes travel over TCP without names: the record of the step is compared.
TEST(Disagreement, AnOrderOfItsOwnIsFoundAtTheEndOfTheStep) {
  expect_order_refused(
      false,
      "[shard.backward] ranks gathered different units: in step 1 rank 1 did 'gather second' where rank 0 "
      "did "
      "'gather first'; every rank has to read the same ZeRO-3 units in the same order: where the rank's own "
      "data chooses (experts), make the parent of the choices one unit, or use all of them on every rank");
}

// One of Gloo's threads throws where a message is longer than expected: the process ends, with one
// line.
TEST(DisagreementDeathTest, UnitsOfUnequalSizesInAnOrderOfTheirOwnEndTheProcessWithALine) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      expect_order_refused(false, "", 64), ::testing::ExitedWithCode(kExitCommunication),
      "error: \\[mesh\\.gloo\\] ranks are in different collectives: a message of 320 bytes came where this "
      "rank "
      "expected 20: expected the same calls on every rank, and the same ZeRO-3 units in the same order; ");
}

TEST(Disagreement, AnOrderOfItsOwnIsFoundAtOnceInSharedMemory) {
  EXPECT_THROW(expect_order_refused(true, "[shard.forward] ranks gather different units: rank "), CommError);
  EXPECT_THROW(
      expect_order_refused(true,
                           " in step 1; every rank has to read the same ZeRO-3 units in the same "
                           "order: where the rank's own data chooses (experts), make the parent of "
                           "the choices one unit, or use all of them on every rank; [mesh.all_gather"),
      CommError);
}

/// What rank 0 of two is told when rank 1 leaves out the second forward, or its backward.
std::string told_of_a_missing(bool backward, Level level, bool units) {
  std::string message;
  const auto train = [&](mesh::Mesh& mesh) {
    auto net = std::make_shared<Pair>();
    FullyShardOptions options;
    options.policy = units ? shard::by_type<torch::nn::Linear>({.level = level}) : shard::no_units();
    options.root.level = level;
    ShardedModule sharded(net, mesh, options);
    const auto forward = [&] {
      return sharded.forward([&] {
        return net->second->forward(net->first->forward(at::ones({1, 4}))).sum();
      });
    };
    forward().backward();
    if (mesh.rank() == 1) {
      try {
        if (backward) forward();
        mesh.world().barrier("a call of its own");
      } catch (const CommError&) {
        mesh.name_silent_ranks(std::chrono::seconds(4));
      }
      return;
    }
    try {
      const at::Tensor loss = forward();
      if (backward) loss.backward();
    } catch (const CommError& error) {
      message = error.what();
    }
  };
  // Long enough that a busy machine does not let the first, complete pass run out of it.
  EXPECT_THROW(testing::run_ranks({{"shard", 2}}, train, std::chrono::seconds(10)), CommError)
      << plan::to_string(level) << (backward ? " in backward" : " in forward");
  return message;
}

TEST(Disagreement, AMissingCallIsNamedWithUnitStepAndRanks) {
  const auto expect_parts = [](const std::string& message, std::vector<std::string> parts) {
    for (const char* part : {"rank 0/2", "step 2", "every rank is alive", "rank 1", "a call of its own"}) {
      parts.emplace_back(part);
    }
    for (const std::string& part : parts) {
      EXPECT_NE(message.find(part), std::string::npos) << part << " in " << message;
    }
  };
  // Side by side, since each waits for the timeout.
  auto in_forward =
      std::async(std::launch::async, told_of_a_missing, /*backward=*/false, Level::kZero3, /*units=*/true);
  // In backward autograd calls back.
  std::map<Level, std::future<std::string>> in_backward;
  for (const Level level : {Level::kReplicate, Level::kZero2, Level::kZero3}) {
    in_backward[level] = std::async(std::launch::async, told_of_a_missing, /*backward=*/true, level,
                                    /*units=*/level != Level::kReplicate);
  }
  expect_parts(in_forward.get(), {"[mesh.all_gather first over axis shard]", "unit first"});
  for (auto& [level, message] : in_backward) {
    SCOPED_TRACE(plan::to_string(level));
    expect_parts(message.get(), {level == Level::kReplicate ? "unit root" : "unit ", "[mesh."});
  }
}

}  // namespace
}  // namespace tessera
