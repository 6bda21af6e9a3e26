// An unmodified module under every level and setting against itself without sharding.
#include "tessera/shard/fully_shard.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "../mesh/ranks.h"
#include "foreign_net.h"

namespace tessera {
namespace {

using shard::FullyShardOptions;
using shard::Gradients;
using shard::Level;
using shard::ShardedModule;
using shard::UnitOptions;
using testing::ForeignNet;

constexpr int64_t kBatch = 12, kSteps = 3;
constexpr double kClip = 0.5;

struct Result {
  std::vector<double> values;                    // loss and gradient norm of each step
  std::map<std::string, at::Tensor> parameters;  // whole, after the last
};

at::Tensor tokens() { return at::arange(kBatch).remainder(ForeignNet::kTokens); }

/// Mean loss of `count` samples from `begin`. BatchNorm in eval mode keeps samples independent.
at::Tensor loss_of(ForeignNet& net, int64_t begin, int64_t count) {
  const at::Tensor extra = testing::normal("extra", {kBatch, 3}),
                   goal = testing::normal("goal", {kBatch, ForeignNet::kTokens});
  const at::Tensor out = net.forward(tokens().narrow(0, begin, count), extra.narrow(0, begin, count));
  return (out.to(at::kFloat) - goal.narrow(0, begin, count)).square().sum(1).mean();
}

void put_whole(Result& result, torch::nn::Module& net) {
  for (const auto& entry : net.named_parameters()) {
    result.parameters[entry.key()] = entry.value().detach().to(at::kFloat).clone();
  }
}

Result unsharded(at::ScalarType dtype = at::kFloat) {
  ForeignNet net;
  testing::set_values(net);
  net.eval();
  if (dtype != at::kFloat) net.to(dtype);
  torch::optim::SGD optimizer(net.parameters(),
                              torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01));
  Result result;
  for (int64_t step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    const at::Tensor loss = loss_of(net, 0, kBatch);
    loss.backward();
    result.values.push_back(loss.item<double>());
    result.values.push_back(torch::nn::utils::clip_grad_norm_(net.parameters(), kClip));
    optimizer.step();
  }
  put_whole(result, net);
  return result;
}

Result sharded(mesh::Mesh& mesh, const FullyShardOptions& options, int64_t accumulation = 1) {
  auto net = std::make_shared<ForeignNet>();
  if (mesh.rank() == 0) testing::set_values(*net);  // the others are given rank 0's
  net->eval();
  ShardedModule module(net, mesh, options);
  torch::optim::SGD optimizer(module.parameters(),
                              torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01));
  const int64_t ranks = mesh.world_size(), count = kBatch / (ranks * accumulation);
  Result result;
  for (int64_t step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    double sum = 0;
    for (int64_t a = 0; a < accumulation; ++a) {
      module.set_micro_batch(a, accumulation);
      at::Tensor loss =
          module.forward([&] { return loss_of(*net, (mesh.rank() * accumulation + a) * count, count); });
      sum += loss.item<double>();
      if (options.gradients == Gradients::kSum) loss = loss / (ranks * accumulation);
      loss.backward();
    }
    at::Tensor total = at::full({1}, sum / static_cast<double>(ranks * accumulation), at::kDouble);
    mesh.world().all_reduce(total, "loss");
    result.values.push_back(total.item<double>());
    result.values.push_back(module.clip_grad_norm(kClip));
    optimizer.step();
  }
  module.with_full_parameters([&] { put_whole(result, *net); });
  return result;
}

void expect_close(const Result& a, const Result& b, double tolerance) {
  ASSERT_EQ(a.values.size(), b.values.size());
  for (size_t i = 0; i < a.values.size(); ++i) {
    EXPECT_NEAR(a.values[i], b.values[i], tolerance * std::abs(b.values[i])) << "value " << i;
  }
  ASSERT_EQ(a.parameters.size(), b.parameters.size());
  for (const auto& [name, value] : b.parameters) {
    if (value.numel() == 0) continue;
    EXPECT_LE((a.parameters.at(name) - value).abs().max().item<double>(),
              tolerance * value.abs().max().item<double>())
        << name;
  }
}

shard::Policy children(UnitOptions unit) {
  return [unit](const std::string&, torch::nn::Module& module, int64_t numel) {
    return numel > 0 ? std::optional(unit) : std::nullopt;
  };
}

FullyShardOptions all_at(Level level) {
  FullyShardOptions options;
  options.policy = children({.level = level});
  options.root.level = level;
  return options;
}

class AnyLevel : public ::testing::TestWithParam<std::tuple<Level, int64_t>> {};

// fp32: only the order of sums over samples differs.
TEST_P(AnyLevel, EqualsTheUnshardedModule) {
  const auto [level, world] = GetParam();
  const Result expected = unsharded();
  for (const int64_t accumulation : {1, 2, 3}) {
    if (kBatch % (world * accumulation) != 0) continue;
    for (const bool every : {true, false}) {
      if (accumulation == 1 && !every) continue;
      for (const auto gradients : {Gradients::kMean, Gradients::kSum}) {
        FullyShardOptions options = all_at(level);
        options.reduce_every_micro_batch = every;
        options.gradients = gradients;
        testing::run_ranks({{"shard", world}}, [&](mesh::Mesh& mesh) {
          SCOPED_TRACE(concat("accumulation ", accumulation, " every ", every, " mean ",
                              gradients == Gradients::kMean));
          expect_close(sharded(mesh, options, accumulation), expected, 2e-6);
        });
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, AnyLevel,
                         ::testing::Combine(::testing::Values(Level::kReplicate, Level::kZero1, Level::kZero2,
                                                              Level::kZero3),
                                            ::testing::Values(1, 2, 3, 4)),
                         [](const auto& info) {
                           return concat(plan::to_string(std::get<0>(info.param)), "_",
                                         std::get<1>(info.param));
                         });

TEST(FullyShard, AnyPrefetchLimitAndRootEqualTheUnshardedModule) {
  const Result expected = unsharded();
  for (const bool root_stays : {true, false}) {
    for (const int64_t prefetch : {0, 1, 3}) {
      for (const int64_t in_flight : {0, 1, 4}) {
        FullyShardOptions options = all_at(Level::kZero3);
        options.root_stays_gathered = root_stays;
        options.prefetch = prefetch;
        options.units_in_flight = in_flight;
        testing::run_ranks({{"shard", 2}}, [&](mesh::Mesh& mesh) {
          SCOPED_TRACE(concat("root stays ", root_stays, " prefetch ", prefetch, " in flight ", in_flight));
          expect_close(sharded(mesh, options, 2), expected, 2e-6);
        });
      }
    }
  }
}

TEST(FullyShard, HybridShardsInsideAndReplicatesAcross) {
  const Result expected = unsharded();
  for (const Level level : {Level::kZero1, Level::kZero2, Level::kZero3}) {
    testing::run_ranks({{"dp", 2}, {"shard", 2}}, [&](mesh::Mesh& mesh) {
      expect_close(sharded(mesh, all_at(level), 3), expected, 2e-6);
    });
  }
}

TEST(FullyShard, EveryUnitMayHaveALevelOfItsOwn) {
  const Result expected = unsharded();
  FullyShardOptions options;
  options.policy = [](const std::string& name, torch::nn::Module&, int64_t) -> std::optional<UnitOptions> {
    if (name == "embedding") return UnitOptions{.level = Level::kReplicate};
    if (name == "fc1") return UnitOptions{.level = Level::kZero1};
    if (name == "twice") return UnitOptions{.level = Level::kZero2};
    if (name == "fc2") return UnitOptions{.level = Level::kZero3};
    return std::nullopt;
  };
  testing::run_ranks({{"shard", 3}},
                     [&](mesh::Mesh& mesh) { expect_close(sharded(mesh, options, 2), expected, 2e-6); });
}

TEST(FullyShard, ReplicatedUnitsAreReducedInBuckets) {
  const Result expected = unsharded();
  FullyShardOptions options;
  options.policy = shard::no_units();
  options.root.level = Level::kReplicate;
  options.bucket_bytes = 300;  // less than some parameters
  testing::run_ranks({{"shard", 2}}, [&](mesh::Mesh& mesh) {
    expect_close(sharded(mesh, options, 2), expected, 2e-6);
    EXPECT_GT(mesh.world().traffic().at("reduce_scatter").calls, 5);
  });
}

// 2 ranks with the same samples: (g + g) / 2 is g, so no sum is reordered and not one bit may differ.
TEST(FullyShard, IsBitwiseWhereNoSumIsReordered) {
  const Result expected = unsharded();
  for (const Level level : {Level::kReplicate, Level::kZero1, Level::kZero2, Level::kZero3}) {
    for (const int64_t world : {1, 2}) {
      testing::run_ranks({{"shard", world}}, [&](mesh::Mesh& mesh) {
        auto net = std::make_shared<ForeignNet>();
        testing::set_values(*net);
        net->eval();
        ShardedModule module(net, mesh, all_at(level));
        torch::optim::SGD optimizer(module.parameters(),
                                    torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01));
        Result result;
        for (int64_t step = 0; step < kSteps; ++step) {
          optimizer.zero_grad();
          const at::Tensor loss = module.forward([&] { return loss_of(*net, 0, kBatch); });
          loss.backward();
          EXPECT_EQ(loss.item<double>(), expected.values[static_cast<size_t>(2 * step)]);
          // The norm's own sum is another one: clip by the unsharded one's value.
          const double norm = module.grad_norm(), known = expected.values[static_cast<size_t>(2 * step + 1)];
          EXPECT_NEAR(norm, known, 1e-6 * known);
          const double factor = static_cast<float>(kClip / (known + 1e-6));
          for (const at::Tensor& parameter : module.parameters()) {
            if (parameter.grad().defined() && factor < 1) parameter.grad().mul_(factor);
          }
          optimizer.step();
        }
        module.with_full_parameters([&] { put_whole(result, *net); });
        for (const auto& [name, value] : expected.parameters) {
          EXPECT_TRUE(result.parameters.at(name).equal(value)) << plan::to_string(level) << " " << name;
        }
      });
    }
  }
}

TEST(FullyShard, Bf16FollowsTheUnshardedModule) {
  const Result expected = unsharded();
  for (const auto& reduce : {at::kFloat, at::kBFloat16}) {
    FullyShardOptions options = all_at(Level::kZero3);
    options.precision.compute = at::kBFloat16;
    options.precision.reduce = reduce;
    options.precision.buffer = at::kBFloat16;
    testing::run_ranks({{"shard", 2}},
                       [&](mesh::Mesh& mesh) { expect_close(sharded(mesh, options, 2), expected, 3e-2); });
  }
}

TEST(FullyShard, Float64AndBf16Masters) {
  const Result expected = unsharded();
  FullyShardOptions options = all_at(Level::kZero3);
  options.precision.master = at::kDouble;
  testing::run_ranks({{"shard", 2}},
                     [&](mesh::Mesh& mesh) { expect_close(sharded(mesh, options), expected, 2e-6); });
  options.precision.master = at::kBFloat16;
  testing::run_ranks({{"shard", 2}}, [&](mesh::Mesh& mesh) {
    const Result result = sharded(mesh, options);
    EXPECT_NEAR(result.values[0], expected.values[0], 2e-2 * expected.values[0]);
  });
}

}  // namespace
}  // namespace tessera
