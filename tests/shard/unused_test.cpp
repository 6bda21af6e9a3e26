// SPDX-License-Identifier: Apache-2.0
// Parameters that only some ranks use, others in every step: experts, LayerDrop, detection heads. Against the
// network without sharding, which sees what all ranks see.
#include <gtest/gtest.h>
#include <torch/nn.h>
#include <torch/optim.h>

#include "../mesh/ranks.h"
#include "foreign_net.h"
#include "tessera/base/random.h"
#include "tessera/shard/fully_shard.h"
#include "tessera/shard/recompute.h"

namespace tessera::unused_test {
namespace {

using shard::FullyShardOptions;
using shard::Level;
using shard::ShardedModule;

constexpr int64_t kExperts = 4, kWidth = 6;

/// What one rank uses of the network in one micro-batch; drawn by its number.
struct Use {
  std::vector<bool> experts;
  bool head = true, scale = true;
  explicit Use(uint64_t number) {
    const auto one_in = [&](uint64_t bound, uint64_t i) {
      return random_below(random_key(3, "use"), number * 16 + i, bound) == 0;
    };
    for (uint64_t e = 0; e < kExperts; ++e) experts.push_back(one_in(2, e));
    head = !one_in(3, 10);
    scale = one_in(2, 11);
  }
};

struct Layer : torch::nn::Module {
  torch::nn::Linear gate{nullptr};
  std::vector<torch::nn::Linear> experts;
  Layer() {
    gate = register_module("gate", torch::nn::Linear(kWidth, kWidth));
    for (int64_t e = 0; e < kExperts; ++e) {
      experts.push_back(
          register_module("expert" + std::to_string(e), torch::nn::Linear(kWidth, kWidth + e % 2)));
    }
  }
  at::Tensor forward(const at::Tensor& x, const Use& use) {
    at::Tensor y = torch::tanh(gate->forward(x));
    for (size_t e = 0; e < experts.size(); ++e) {
      if (use.experts[e]) y = y + torch::sin(experts[e]->forward(y)).narrow(1, 0, kWidth);
    }
    return y;
  }
};

struct Net : torch::nn::Module {
  torch::nn::Linear in{nullptr}, head{nullptr}, out{nullptr};
  std::shared_ptr<Layer> first, second;
  at::Tensor scale, never;
  bool recomputes = false;
  Net() {
    in = register_module("in", torch::nn::Linear(3, kWidth));
    first = register_module("first", std::make_shared<Layer>());
    second = register_module("second", std::make_shared<Layer>());
    head = register_module("head", torch::nn::Linear(kWidth, 5));
    out = register_module("out", torch::nn::Linear(kWidth, 2));
    scale = register_parameter("scale", torch::ones({kWidth}));
    never = register_parameter("never", torch::ones({7}));
    testing::set_values(*this);
  }
  at::Tensor forward(const at::Tensor& x, const Use& use) {
    at::Tensor y = in->forward(x);
    for (auto* layer : {first.get(), second.get()}) {
      const auto run = [layer, use](const at::Tensor& h) { return layer->forward(h, use); };
      y = recomputes ? shard::recompute(run, y) : run(y);
      if (use.scale) y = y * scale;
    }
    at::Tensor loss = out->forward(y).square().sum();
    if (use.head) loss = loss + torch::tanh(head->forward(y)).square().sum();
    return loss / 4;
  }
};

struct Setting {
  Level level = Level::kZero3;
  int64_t world = 2, micro_batches = 1;
  bool units = true;          // layers (with all experts) are units
  bool expert_units = false;  // each expert is one
  bool recompute = false, reduce_every = true, same = false;
  bool dp = false;
  std::string text() const {
    return concat(plan::to_string(level), " world ", world, " micro-batches ", micro_batches,
                  units ? " units" : "", expert_units ? " expert units" : "", recompute ? " recompute" : "",
                  reduce_every ? "" : " reduce once", dp ? " dp" : "");
  }
};

constexpr int64_t kRandomSteps = 12;

Use use_of(int64_t step, int64_t micro_batch, int64_t rank, bool same) {
  return Use(static_cast<uint64_t>((step * 8 + micro_batch) * 8 + (same ? 0 : rank)));
}
at::Tensor samples(int64_t step, int64_t micro_batch, int64_t rank) {
  return testing::normal(concat(step, " ", micro_batch, " ", rank), {4, 3});
}

using Weights = std::map<std::string, at::Tensor>;
Weights weights_of(torch::nn::Module& net) {
  Weights weights;
  for (const auto& entry : net.named_parameters()) weights[entry.key()] = entry.value().detach().clone();
  return weights;
}

Weights unsharded(const Setting& setting) {
  Net net;
  torch::optim::AdamW optimizer(net.parameters(), torch::optim::AdamWOptions(0.01));
  for (int64_t step = 0; step < kRandomSteps; ++step) {
    optimizer.zero_grad();
    for (int64_t a = 0; a < setting.micro_batches; ++a) {
      for (int64_t rank = 0; rank < setting.world; ++rank) {
        (net.forward(samples(step, a, rank), use_of(step, a, rank, setting.same)) /
         (setting.world * setting.micro_batches))
            .backward();
      }
    }
    optimizer.step();
  }
  return weights_of(net);
}

FullyShardOptions options_of(const Setting& setting) {
  FullyShardOptions options;
  options.root.level = setting.level;
  options.reduce_every_micro_batch = setting.reduce_every;
  options.bucket_bytes = 100;  // replicated units have several buckets
  options.policy = [setting](const std::string& name, torch::nn::Module& module,
                             int64_t) -> std::optional<shard::UnitOptions> {
    const bool expert = name.find("expert") != std::string::npos;
    if ((setting.units && module.as<Layer>() != nullptr) || (setting.expert_units && expert))
      return shard::UnitOptions{.level = setting.level};
    return std::nullopt;
  };
  return options;
}

void expect_equals_unsharded(const Setting& setting) {
  SCOPED_TRACE(setting.text());
  const Weights expected = unsharded(setting);
  std::vector<mesh::Axis> axes = {{"shard", setting.world}};
  if (setting.dp) axes = {{"dp", 2}, {"shard", setting.world / 2}};
  testing::run_ranks(
      axes,
      [&](mesh::Mesh& mesh) {
        auto net = std::make_shared<Net>();
        net->recomputes = setting.recompute;
        ShardedModule sharded(net, mesh, options_of(setting));
        torch::optim::AdamW optimizer(sharded.parameters(), torch::optim::AdamWOptions(0.01));
        for (int64_t step = 0; step < kRandomSteps; ++step) {
          optimizer.zero_grad();
          for (int64_t a = 0; a < setting.micro_batches; ++a) {
            sharded.set_micro_batch(a, setting.micro_batches);
            const Use use = use_of(step, a, mesh.rank(), setting.same);
            sharded.forward([&] { return net->forward(samples(step, a, mesh.rank()), use); }).backward();
          }
          optimizer.step();
        }
        Weights weights;
        sharded.with_full_parameters([&] { weights = weights_of(*net); });
        for (const auto& [name, value] : expected) {
          EXPECT_LE((weights.at(name) - value).abs().max().item<double>(), 2e-5) << name;
        }
      },
      std::chrono::seconds(20));
}

constexpr auto kAllLevels = {Level::kReplicate, Level::kZero1, Level::kZero2, Level::kZero3};

TEST(Unused, ByRankAndStepEqualsTheUnshardedNetwork) {
  for (const Level level : kAllLevels) {
    for (const int64_t world : {2, 3}) {
      for (const bool units : {false, true}) {
        expect_equals_unsharded({.level = level, .world = world, .units = units});
      }
    }
  }
}

// Each expert is a unit. At ZeRO-3 gathers would depend on the data.
TEST(Unused, ExpertsThatAreUnitsEqualTheUnshardedNetwork) {
  for (const Level level : {Level::kReplicate, Level::kZero1, Level::kZero2}) {
    for (const int64_t world : {2, 3})
      expect_equals_unsharded({.level = level, .world = world, .expert_units = true});
  }
}

TEST(Unused, WithMicroBatchesEqualsTheUnshardedNetwork) {
  for (const Level level : kAllLevels) {
    for (const bool reduce_every : {true, false}) {
      expect_equals_unsharded({.level = level, .micro_batches = 3, .reduce_every = reduce_every});
    }
  }
}

// Autograd learns of a recomputed piece's parameters when it runs it again.
TEST(Unused, InsideRecomputedPiecesEqualsTheUnshardedNetwork) {
  for (const Level level : kAllLevels) {
    for (const int64_t micro_batches : {1, 2}) {
      expect_equals_unsharded({.level = level, .micro_batches = micro_batches, .recompute = true});
    }
  }
}

TEST(Unused, OverTwoAxesEqualsTheUnshardedNetwork) {
  for (const Level level : kAllLevels) expect_equals_unsharded({.level = level, .world = 4, .dp = true});
}

// LayerDrop with one seed for all ranks, of units.
TEST(Unused, TheSameOnAllRanksMayDropUnits) {
  expect_equals_unsharded({.world = 2, .expert_units = true, .same = true});
  expect_equals_unsharded(
      {.world = 2, .micro_batches = 2, .expert_units = true, .recompute = true, .same = true});
}

}  // namespace
}  // namespace tessera::unused_test
