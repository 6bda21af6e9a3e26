// SPDX-License-Identifier: Apache-2.0
#include "tessera/shard/recompute.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/nn.h>

#include <map>

#include "../error_text.h"
#include "../mesh/ranks.h"
#include "foreign_net.h"
#include "tessera/shard/fully_shard.h"
#include "tessera/shard/replay.h"

namespace tessera {
namespace {

using shard::FullyShardOptions;
using shard::recompute;
using shard::ShardedModule;
using shard::UnitOptions;

/// Two blocks with batch normalisation and dropout; `how` runs a block.
struct Blocks : torch::nn::Module {
  torch::nn::Linear fc1{nullptr}, fc2{nullptr};
  torch::nn::BatchNorm1d norm1{nullptr}, norm2{nullptr};
  Blocks() {
    fc1 = register_module("fc1", torch::nn::Linear(5, 8));
    norm1 = register_module("norm1", torch::nn::BatchNorm1d(8));
    fc2 = register_module("fc2", torch::nn::Linear(8, 8));
    norm2 = register_module("norm2", torch::nn::BatchNorm1d(8));
  }
  at::Tensor first(const at::Tensor& x) {
    at::Tensor h = norm1->forward(fc1->forward(x)).reshape({-1, 8});
    h = h.relu_();  // in place, on what the block made itself
    return torch::dropout(h, 0.4, is_training());
  }
  at::Tensor second(const at::Tensor& x) {
    return torch::dropout(norm2->forward(fc2->forward(x)), 0.4, is_training()) + x;
  }

  enum class How { kPlain, kRecompute, kNested };
  at::Tensor forward(const at::Tensor& x, How how) {
    if (how == How::kPlain) return second(first(x));
    const auto both = [&](const at::Tensor& h) {
      return recompute([&](const at::Tensor& g) { return second(g); },
                       recompute([&](const at::Tensor& g) { return first(g); }, h));
    };
    return how == How::kRecompute ? both(x) : recompute(both, x);
  }
};

struct Outcome {
  std::vector<at::Tensor> tensors;  // loss, gradients, buffers
};

template <typename Net>
void put_buffers(Outcome& outcome, const Net& net) {
  for (const at::Tensor& buffer : net.buffers()) outcome.tensors.push_back(buffer.clone());
}

void expect_equal(const Outcome& a, const Outcome& b) {
  ASSERT_EQ(a.tensors.size(), b.tensors.size());
  for (size_t i = 0; i < a.tensors.size(); ++i)
    EXPECT_TRUE(a.tensors[i].equal(b.tensors[i])) << "tensor " << i;
}

Outcome run_plain(Blocks::How how, bool input_requires_grad) {
  Blocks net;
  testing::set_values(net);
  torch::manual_seed(3);
  Outcome outcome;
  const at::Tensor x = testing::normal("x", {6, 5}).requires_grad_(input_requires_grad);
  for (int step = 0; step < 2; ++step) {
    const at::Tensor loss = net.forward(x, how).square().sum();
    const at::Tensor after = torch::rand({2});  // drawn between forward and backward
    loss.backward();
    outcome.tensors.insert(outcome.tensors.end(), {loss.detach(), after, torch::rand({2})});
  }
  for (const at::Tensor& parameter : net.parameters()) outcome.tensors.push_back(parameter.grad());
  if (input_requires_grad) outcome.tensors.push_back(x.grad());
  put_buffers(outcome, net);
  return outcome;
}

TEST(Recompute, RepeatsRandomNumbersAndCountsStatisticsOnce) {
  for (const bool input_requires_grad : {false, true}) {
    const Outcome expected = run_plain(Blocks::How::kPlain, input_requires_grad);
    expect_equal(run_plain(Blocks::How::kRecompute, input_requires_grad), expected);
    expect_equal(run_plain(Blocks::How::kNested, input_requires_grad), expected);
  }
}

// Ranks are threads with one generator, so dropout only alone; rank 0 of 1 shards as well.
TEST(Recompute, IsBitwiseUnderSharding) {
  for (const int64_t world : {1, 2, 3}) {
    std::vector<Outcome> outcomes;
    for (const auto how : {Blocks::How::kPlain, Blocks::How::kRecompute, Blocks::How::kNested}) {
      Outcome outcome;
      testing::run_ranks({{"shard", world}}, [&](mesh::Mesh& mesh) {
        auto net = std::make_shared<Blocks>();
        testing::set_values(*net);
        if (world > 1) {
          net->eval();
          net->norm1->train();
          net->norm2->train();
        } else {
          torch::manual_seed(3);
        }
        FullyShardOptions options;
        options.policy = shard::by_type<torch::nn::Linear, torch::nn::BatchNorm1d>();
        ShardedModule sharded(net, mesh, options);
        Outcome mine;
        for (int step = 0; step < 3; ++step) {
          const at::Tensor x = testing::normal(concat("x", mesh.rank()), {6, 5});
          at::Tensor loss = sharded.forward([&] { return net->forward(x, how).square().mean(); });
          loss.backward();
          mine.tensors.push_back(loss.detach());
        }
        for (const at::Tensor& parameter : sharded.parameters())
          mine.tensors.push_back(parameter.grad().clone());
        put_buffers(mine, *net);
        if (mesh.rank() == 0) outcome = mine;
      });
      outcomes.push_back(outcome);
    }
    expect_equal(outcomes[1], outcomes[0]);
    expect_equal(outcomes[2], outcomes[0]);
  }
}

// A sum of other ranks' messages moves on wherever this thread waits: in a second run as well, which undoes
// what it changed in place.
TEST(Recompute, LeavesASumThatMovesOnMeanwhile) {
  constexpr int64_t kNumbers = 100'000;
  testing::run_ranks({{"shard", 2}}, [&](mesh::Mesh& mesh) {
    for (const auto dtype : {at::kFloat, at::kDouble}) {
      at::Tensor sum = at::zeros({kNumbers}, dtype), gathered = at::empty({2}, dtype);
      auto pending = mesh.group("shard").reduce_scatter(
          sum, at::full({2 * kNumbers}, static_cast<double>(1 + mesh.rank()), dtype), dtype, "t");
      {
        const shard::Replay replay;
        mesh.group("shard").all_gather(gathered, at::ones({1}, dtype), "t").wait();
        mesh.world().barrier("meanwhile");
      }
      pending.wait();
      EXPECT_TRUE((sum == 3).all().item<bool>()) << at::toString(dtype);
    }
  });
}

TEST(Recompute, SeveralTensorsInAndOut) {
  const at::Tensor a = testing::normal("a", {3}).requires_grad_(true),
                   b = testing::normal("b", {3}).requires_grad_(true);
  const at::Tensor index = at::arange(3);
  const auto body = [](const at::Tensor& x, const at::Tensor& y, const at::Tensor& i) {
    return std::tuple(x * y, y.sin(), i + 1);
  };
  const auto [product, sine, next] = recompute(body, a, b, index);
  EXPECT_TRUE(next.equal(index + 1));
  EXPECT_FALSE(next.requires_grad());
  (product.sum() * 2 + sine.sum()).backward();
  EXPECT_TRUE(at::allclose(a.grad(), b * 2));
  EXPECT_TRUE(at::allclose(b.grad(), a * 2 + b.cos()));
  a.mutable_grad().reset();
  b.mutable_grad().reset();
  std::get<0>(recompute(body, a, b, index)).sum().backward();  // the other output is not differentiated
  EXPECT_TRUE(at::allclose(a.grad(), b));
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(std::get<0>(recompute(body, a, b, index)).requires_grad());
}

TEST(Recompute, RunsWithTheAutocastOfForward) {
  torch::nn::Linear linear(4, 4);
  int runs = 0;
  const at::Tensor x = testing::normal("x", {2, 4});
  at::autocast::set_autocast_enabled(at::kCPU, true);
  const at::Tensor y = recompute(
      [&](const at::Tensor& h) {
        ++runs;
        const at::Tensor out = linear->forward(h);
        EXPECT_EQ(out.scalar_type(), at::kBFloat16);
        return out;
      },
      x);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  y.sum().backward();
  EXPECT_EQ(runs, 2);
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
}

struct CountedImpl : torch::nn::Module {
  torch::nn::Linear linear{nullptr};
  int runs = 0;
  CountedImpl() { linear = register_module("linear", torch::nn::Linear(4, 4)); }
  at::Tensor forward(const at::Tensor& x) {
    ++runs;
    return linear->forward(x);
  }
};
TORCH_MODULE(Counted);

/// A Sequential of blocks, and a child that is called by its type.
struct Tower : torch::nn::Module {
  torch::nn::Sequential blocks;
  torch::nn::Linear head{nullptr};
  Tower() {
    for (int i = 0; i < 3; ++i) blocks->push_back(Counted());
    register_module("blocks", blocks);
    head = register_module("head", torch::nn::Linear(4, 2));
  }
  at::Tensor forward(const at::Tensor& x) { return head->forward(blocks->forward(x)); }
};

/// How units are recomputed: not; by the policy; by a wrapper of the user's.
enum class How { kNot, kPolicy, kWrapper };

TEST(Recompute, ThePolicyOrAWrapperAsksForItInASequential) {
  const at::Tensor x = testing::normal("x", {3, 4});
  std::map<How, std::vector<at::Tensor>> gradients;
  for (const How how : {How::kNot, How::kPolicy, How::kWrapper}) {
    testing::run_ranks({{"shard", 2}}, [&](mesh::Mesh& mesh) {
      auto net = std::make_shared<Tower>();
      testing::set_values(*net);
      int wrapped = 0;
      FullyShardOptions options;
      options.policy = [&](const std::string& name, torch::nn::Module&,
                           int64_t) -> std::optional<UnitOptions> {
        if (name.rfind("blocks.", 0) != 0 || name.size() != 8) return std::nullopt;
        return UnitOptions{.recompute = how == How::kPolicy};
      };
      options.wrap = [&](const std::string& name, torch::nn::AnyModule child) {
        ++wrapped;
        return how == How::kWrapper ? shard::recomputed(name, child) : child;
      };
      ShardedModule sharded(net, mesh, options);
      EXPECT_EQ(wrapped, 3);
      EXPECT_EQ(sharded.units().size(), 4U);
      EXPECT_EQ(sharded.shards()[0].name, "blocks.0.linear.weight");
      sharded.forward([&] { return net->forward(x).square().sum(); }).backward();
      for (const auto& module : net->modules(false)) {
        const auto* counted = module->as<CountedImpl>();
        if (counted == nullptr) continue;
        EXPECT_EQ(counted->runs, how == How::kNot ? 1 : 2);
      }
      if (mesh.rank() == 0) {
        for (const at::Tensor& parameter : sharded.parameters())
          gradients[how].push_back(parameter.grad().clone());
      }
    });
  }
  for (const How how : {How::kPolicy, How::kWrapper}) {
    ASSERT_EQ(gradients[how].size(), gradients[How::kNot].size());
    for (size_t i = 0; i < gradients[how].size(); ++i)
      EXPECT_TRUE(gradients[how][i].equal(gradients[How::kNot][i]));
  }
}

TEST(Recompute, OfAChildThatIsCalledByItsTypeIsRefused) {
  testing::run_ranks({{"shard", 1}}, [](mesh::Mesh& mesh) {
    FullyShardOptions options;
    options.policy = [](const std::string& name, torch::nn::Module&, int64_t) -> std::optional<UnitOptions> {
      if (name != "head") return std::nullopt;
      return UnitOptions{.recompute = true};
    };
    EXPECT_EQ(error_text([&] { ShardedModule(std::make_shared<Tower>(), mesh, options); }),
              "[shard.ShardedModule] head cannot be recomputed: its parent calls it by its C++ type, which "
              "cannot be intercepted: expected a child of a torch::nn::Sequential; write "
              "shard::recompute([&](x) { return child->forward(x); }, x) where it is called");
    options = {};
    options.policy = [](const std::string& name, torch::nn::Module&, int64_t) -> std::optional<UnitOptions> {
      return name == "head" ? std::optional(UnitOptions{}) : std::nullopt;
    };
    options.wrap = shard::recomputed;
    EXPECT_EQ(error_text([&] { ShardedModule(std::make_shared<Tower>(), mesh, options); }),
              "[shard.ShardedModule] head cannot be wrapped: its parent calls it by its C++ type, which "
              "cannot be intercepted: expected a child of a torch::nn::Sequential; let the policy choose "
              "only children of a Sequential");
    options = {};
    options.root.recompute = true;
    EXPECT_EQ(error_text([&] { ShardedModule(std::make_shared<Tower>(), mesh, options); }),
              "[shard.ShardedModule] the root unit cannot be recomputed: expected recompute for units below "
              "the root; write shard::recompute inside the forward of the root");
  });
}

}  // namespace
}  // namespace tessera
