// SPDX-License-Identifier: Apache-2.0
// The gradients of small networks after one backward: tied parameters, one that threw, when they leave.
#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>

#include "foreign_training.h"

namespace tessera {
namespace {

using shard::FullyShardOptions;
using shard::Level;
using shard::ShardedModule;

/// One tensor, two modules that own it.
struct Half : torch::nn::Module {
  at::Tensor weight;
  explicit Half(const at::Tensor& shared) { weight = register_parameter("weight", shared); }
};

struct Tied : torch::nn::Module {
  std::shared_ptr<Half> in, out;
  torch::nn::Linear middle{nullptr};
  Tied() {
    in = register_module("in", std::make_shared<Half>(torch::ones({4, 4})));
    middle = register_module("middle", torch::nn::Linear(4, 4));
    out = register_module("out", std::make_shared<Half>(in->weight));
    testing::set_values(*this);
  }
  at::Tensor forward() {
    return torch::tanh(middle->forward(at::ones({2, 4}).mm(in->weight))).mm(out->weight.t()).sum();
  }
};

/// Largest difference of the gradients from those of the network without sharding.
double worst_gradient(const ShardedModule& sharded, torch::nn::Module& plain) {
  const auto parameters = plain.named_parameters();
  double worst = 0;
  for (const auto& shard : sharded.shards()) {
    if (shard.end == shard.begin) continue;
    const at::Tensor wanted = parameters[shard.name].grad().flatten().slice(0, shard.begin, shard.end);
    worst = std::max(worst, (shard.values.grad() - wanted).abs().max().item<double>());
  }
  return worst;
}

TEST(Backward, ATensorThatTwoModulesOwn) {
  Tied plain;
  plain.forward().backward();
  for (const Level level : {Level::kReplicate, Level::kZero1, Level::kZero2, Level::kZero3}) {
    SCOPED_TRACE(plan::to_string(level));
    testing::run_ranks({{"shard", 2}}, [&](mesh::Mesh& mesh) {
      auto net = std::make_shared<Tied>();
      ShardedModule sharded(net, mesh, testing::every_child({.level = level}));
      EXPECT_EQ(sharded.shards().size(), 3U);
      sharded.forward([&] { return net->forward(); }).backward();
      EXPECT_LE(worst_gradient(sharded, plain), 1e-6);
    });
  }
}

/// Layers with something in between that backward passes.
struct Stack : torch::nn::Module {
  torch::nn::Linear a{nullptr}, b{nullptr}, c{nullptr};
  std::function<void()> between;  // called in backward after c and b, before a
  Stack() {
    a = register_module("a", torch::nn::Linear(4, 4));
    b = register_module("b", torch::nn::Linear(4, 4));
    c = register_module("c", torch::nn::Linear(4, 4));
    testing::set_values(*this);
  }
  at::Tensor forward(double x) {
    const at::Tensor h = torch::tanh(a->forward(at::full({2, 4}, x)));
    if (between && h.requires_grad()) h.register_hook([this](const at::Tensor&) { between(); });
    return c->forward(torch::tanh(b->forward(h))).sum();
  }
};

TEST(Backward, ABackwardThatThrewHalfWayLeavesNothing) {
  Stack plain;
  plain.forward(1).backward();
  for (const int64_t world : {1, 2}) {
    for (const Level level : {Level::kReplicate, Level::kZero1, Level::kZero2, Level::kZero3}) {
      for (const bool units : {false, true}) {
        SCOPED_TRACE(concat(plan::to_string(level), " world ", world, units ? " units" : ""));
        testing::run_ranks({{"shard", world}}, [&](mesh::Mesh& mesh) {
          auto net = std::make_shared<Stack>();
          FullyShardOptions options;
          options.policy = units ? shard::by_type<torch::nn::Linear>({.level = level}) : shard::no_units();
          options.root.level = level;
          ShardedModule sharded(net, mesh, options);
          net->between = [] { throw std::runtime_error("mine"); };
          const at::Tensor loss = sharded.forward([&] { return net->forward(3); });
          EXPECT_THROW(loss.backward(), std::runtime_error);
          net->between = {};
          for (at::Tensor& parameter : sharded.parameters()) parameter.mutable_grad().reset();
          sharded.forward([&] { return net->forward(1); }).backward();
          EXPECT_LE(worst_gradient(sharded, plain), 1e-6);
          // A gradient that was there stays, and is added to.
          net->between = [] { throw std::runtime_error("mine"); };
          const at::Tensor again = sharded.forward([&] { return net->forward(3); });
          EXPECT_THROW(again.backward(), std::runtime_error);
          net->between = {};
          sharded.forward([&] { return net->forward(1); }).backward();
          for (const at::Tensor& parameter : sharded.parameters()) parameter.grad().div_(2);
          EXPECT_LE(worst_gradient(sharded, plain), 1e-6);
        });
      }
    }
  }
}

TEST(Backward, ReplicatedGradientsLeaveWhileBackwardRuns) {
  testing::run_ranks({{"shard", 2}}, [](mesh::Mesh& mesh) {
    auto net = std::make_shared<Stack>();
    FullyShardOptions options;
    options.policy = shard::no_units();
    options.root.level = Level::kReplicate;
    options.bucket_bytes = 64;  // a weight each
    ShardedModule sharded(net, mesh, options);
    const auto begun = [&] { return mesh.world().traffic().at("reduce_scatter").calls; };
    const int64_t before = begun();
    int64_t amid = 0;
    net->between = [&] { amid = begun() - before; };
    sharded.forward([&] { return net->forward(1); }).backward();
    EXPECT_EQ(begun() - before, 6);
    EXPECT_GE(amid, 3);  // of c and b, while a's are not there yet
  });
}

}  // namespace
}  // namespace tessera
