// SPDX-License-Identifier: Apache-2.0
// What FSDP2 has as well: ignored parameters, accumulation without a count, whole state on rank 0, whole
// values written, units that stay gathered.
#include <gtest/gtest.h>
#include <torch/nn.h>
#include <torch/optim.h>

#include "../error_text.h"
#include "../mesh/ranks.h"
#include "foreign_net.h"
#include "tessera/shard/fully_shard.h"
#include "tests/process_memory.h"

namespace tessera::full_state_test {
namespace {

using shard::FullyShardOptions;
using shard::Level;
using shard::ShardedModule;
using shard::StateDict;

struct Net : torch::nn::Module {
  torch::nn::Linear first{nullptr}, second{nullptr};
  at::Tensor tied, phase;
  Net() {
    first = register_module("first", torch::nn::Linear(5, 7));
    second = register_module("second", torch::nn::Linear(7, 3));
    tied = register_parameter("tied", second->weight);
    phase = register_buffer("phase", torch::ones({2, 3}, at::kComplexFloat).t());
    register_parameter("steps", torch::zeros({2}, at::kLong), /*requires_grad=*/false);
    testing::set_values(*this);
  }
  at::Tensor forward(const at::Tensor& x) {
    return second->forward(torch::tanh(first->forward(x))).square().mean() + tied.sum() * 0.01;
  }
};

at::Tensor input(int64_t number = 0) { return testing::normal(concat("x", number), {4, 5}); }

FullyShardOptions linear_units(Level level) {
  FullyShardOptions options;
  options.policy = shard::by_type<torch::nn::Linear>({.level = level});
  options.root.level = level;
  return options;
}

/// On every level with two ranks, ZeRO-3 with three and one, and split and replicated.
void everywhere(const std::function<void(mesh::Mesh&, const FullyShardOptions&)>& body) {
  const std::vector<std::pair<Level, std::vector<mesh::Axis>>> all = {
      {Level::kReplicate, {{"shard", 2}}},       {Level::kZero1, {{"shard", 2}}},
      {Level::kZero2, {{"shard", 2}}},           {Level::kZero3, {{"shard", 2}}},
      {Level::kZero3, {{"shard", 3}}},           {Level::kZero3, {{"shard", 1}}},
      {Level::kZero3, {{"dp", 2}, {"shard", 2}}}};
  for (const auto& [level, axes] : all) {
    SCOPED_TRACE(concat(plan::to_string(level), " ", axes[0].name, " ", axes[0].size));
    testing::run_ranks(axes, [&, level = level](mesh::Mesh& mesh) { body(mesh, linear_units(level)); });
  }
}

TEST(FullState, IgnoredParametersStayWholeAndAreNotReduced) {
  everywhere([](mesh::Mesh& mesh, FullyShardOptions options) {
    options.ignore = [](const std::string& name, const at::Tensor&) { return name.starts_with("first."); };
    auto net = std::make_shared<Net>();
    {
      const at::NoGradGuard no_grad;
      net->first->weight.fill_(0.1 * static_cast<double>(mesh.rank() + 1));
    }
    ShardedModule sharded(net, mesh, options);
    EXPECT_EQ(sharded.parameters().size(), 2U);
    EXPECT_EQ(sharded.whole_parameters().size(), 3U);
    EXPECT_EQ(net->first->weight.numel(), 35);
    EXPECT_NEAR(net->first->weight.mean().item<double>(), 0.1 * static_cast<double>(mesh.rank() + 1), 1e-6);
    sharded.forward([&] { return net->forward(input(mesh.rank())); }).backward();
    Net alone;
    {
      const at::NoGradGuard no_grad;
      alone.first->weight.copy_(net->first->weight);
    }
    alone.forward(input(mesh.rank())).backward();
    EXPECT_TRUE(at::allclose(net->first->weight.grad(), alone.first->weight.grad(), 1e-5, 1e-7));
  });
}

TEST(FullState, NoSyncAccumulatesWithoutACount) {
  Net plain;
  plain.zero_grad();
  for (int64_t a = 0; a < 3; ++a) (plain.forward(input(a)) / 3).backward();
  everywhere([&](mesh::Mesh& mesh, FullyShardOptions options) {
    for (const bool every : {true, false}) {
      options.reduce_every_micro_batch = every;
      auto net = std::make_shared<Net>();
      ShardedModule sharded(net, mesh, options);
      for (int step = 1; step <= 2; ++step) {
        for (at::Tensor& parameter : sharded.parameters()) parameter.mutable_grad().reset();
        {
          const auto no_sync = sharded.no_sync();
          for (int64_t a = 0; a < 2; ++a)
            (sharded.forward([&] { return net->forward(input(a)); }) / 3).backward();
          EXPECT_FALSE(sharded.parameters()[0].grad().defined());
        }
        (sharded.forward([&] { return net->forward(input(2)); }) / 3).backward();
        EXPECT_EQ(sharded.step(), step);
        for (const auto& shard : sharded.shards()) {
          const at::Tensor wanted = plain.named_parameters()[shard.name].grad().flatten();
          EXPECT_TRUE(at::allclose(shard.values.grad(), wanted.slice(0, shard.begin, shard.end), 1e-5, 1e-6))
              << shard.name;
        }
      }
    }
  });
}

TEST(FullState, IsWholeOnRank0AndNothingElsewhere) {
  Net plain;
  everywhere([&](mesh::Mesh& mesh, const FullyShardOptions& options) {
    auto net = std::make_shared<Net>();
    ShardedModule sharded(net, mesh, options);
    const StateDict state = sharded.full_state_dict();
    if (mesh.rank() != 0) {
      EXPECT_TRUE(state.empty());
      return;
    }
    std::vector<std::string> names, expected;
    for (const auto& entry : plain.named_parameters()) expected.push_back(entry.key());
    for (const auto& entry : plain.named_buffers()) expected.push_back(entry.key());
    for (const auto& [name, tensor] : state) {
      names.push_back(name);
      const auto parameters = plain.named_parameters();
      const at::Tensor wanted = parameters.contains(name) ? parameters[name] : plain.named_buffers()[name];
      EXPECT_TRUE(tensor.equal(wanted)) << name;
    }
    EXPECT_EQ(names, expected);
  });
}

TEST(FullState, IsLoadedFromRank0) {
  everywhere([](mesh::Mesh& mesh, FullyShardOptions options) {
    if (options.root.level != Level::kReplicate) options.precision.compute = at::kBFloat16;
    auto net = std::make_shared<Net>();
    ShardedModule sharded(net, mesh, options);
    StateDict state;
    Net other;
    {
      const at::NoGradGuard no_grad;
      for (at::Tensor& parameter : other.parameters()) parameter.add_(3);
      other.phase.mul_(c10::complex<float>(0, 2));
    }
    if (mesh.rank() == 0) {
      for (const auto& entry : other.named_parameters()) state.emplace_back(entry.key(), entry.value());
      for (const auto& entry : other.named_buffers()) state.emplace_back(entry.key(), entry.value());
    }
    sharded.load_full_state_dict(state);
    for (const auto& shard : sharded.shards()) {
      const at::Tensor wanted = other.named_parameters()[shard.name].flatten();
      EXPECT_TRUE(shard.values.equal(wanted.slice(0, shard.begin, shard.end))) << shard.name;
    }
    EXPECT_TRUE(net->phase.equal(other.phase));
    EXPECT_TRUE(net->named_parameters()["steps"].equal(at::full({2}, 3, at::kLong)));
    if (mesh.rank() == 0) {
      state.pop_back();
      state[0].second = at::zeros({2});
      state.emplace_back("mine", at::zeros({1}));
    }
    EXPECT_EQ(
        error_text([&] { sharded.load_full_state_dict(state); }),
        "[shard.load_full_state_dict] the state dict does not match the network: it lacks phase; it has "
        "unknown names: mine; shapes differ: tied: expected the names and shapes of full_state_dict()");
  });
}

TEST(FullState, WrittenParametersAreThoseOfRank0) {
  everywhere([](mesh::Mesh& mesh, FullyShardOptions options) {
    auto net = std::make_shared<Net>();
    ShardedModule sharded(net, mesh, options);
    sharded.with_full_parameters(
        [&] {
          const at::NoGradGuard no_grad;
          net->first->weight.fill_(static_cast<double>(mesh.rank()) + 2);
          net->second->bias.mul_(2);
        },
        /*write_back=*/true);
    Net plain;
    for (const auto& shard : sharded.shards()) {
      at::Tensor wanted = plain.named_parameters()[shard.name].detach().flatten();
      if (shard.name == "first.weight") wanted = at::full_like(wanted, 2);
      if (shard.name == "second.bias") wanted = wanted * 2;
      EXPECT_TRUE(shard.values.equal(wanted.slice(0, shard.begin, shard.end))) << shard.name;
    }
    sharded.with_full_parameters([&] { EXPECT_EQ(net->first->weight.max().item<float>(), 2); });
    sharded.forward([&] { return net->forward(input()); }).backward();
    if (mesh.world_size() == 1) return;
    options.precision.compute = at::kBFloat16;
    auto narrow = std::make_shared<Net>();
    ShardedModule mixed(narrow, mesh, options);
    EXPECT_NE(error_text([&] { mixed.with_full_parameters([] {}, true); })
                  .find("[shard.with_full_parameters] cannot write back first.weight: it is gathered as "
                        "BFloat16, its shards are Float; use load_full_state_dict()"),
              std::string::npos);
  });
}

// Ranks then need not read the same units.
TEST(FullState, UnshardedUnitsMayBeReadByARankAlone) {
  testing::run_ranks({{"shard", 2}}, [](mesh::Mesh& mesh) {
    auto net = std::make_shared<Net>();
    ShardedModule sharded(net, mesh, linear_units(Level::kZero3));
    EXPECT_EQ(error_text([&] { sharded.unshard("third"); }),
              "[shard.unshard] the network has no unit third: expected a name of ShardedModule::units()");
    EXPECT_EQ(error_text([&] { sharded.forward([&] { sharded.unshard(); }); }),
              "[shard.unshard] called inside forward or backward; call it before forward(), on every rank");
    const auto loss = [&] {
      at::Tensor h = torch::tanh(net->first->forward(input()));
      if (mesh.rank() == 0) h = torch::tanh(net->second->forward(h)).repeat({1, 3}).narrow(1, 0, 7);
      return h.square().mean();
    };
    torch::optim::SGD optimizer(sharded.parameters(), 0.1);
    sharded.unshard("second");
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      sharded.forward(loss).backward();
      optimizer.step();
    }
    EXPECT_EQ(sharded.step(), 3);
    sharded.reshard("second");
    for (int step = 0; step < 2; ++step) sharded.forward([&] { return net->forward(input()); }).backward();
    sharded.unshard();
    sharded.forward(loss).backward();
    sharded.reshard();
  });
}

TEST(FullState, OtherRanksHoldNoMoreThanAWindow) {
  struct Large : torch::nn::Module {
    Large() { register_parameter("weight", torch::zeros({48 << 20})); }  // 192 MiB
  };
  const auto mesh = mesh::Mesh::pretend(1, {{"shard", 2}});
  FullyShardOptions options;
  options.sync_initial_values = false;
  ShardedModule sharded(std::make_shared<Large>(), *mesh, options);
  const int64_t grown = testing::peak_above_idle([&] { EXPECT_TRUE(sharded.full_state_dict().empty()); });
  EXPECT_LE(grown, 24 << 20);
}

}  // namespace
}  // namespace tessera::full_state_test
