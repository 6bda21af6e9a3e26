// SPDX-License-Identifier: Apache-2.0
// Bytes on the wire of a sharded module against docs/sharding.md, and memory while it is built.
#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/optim.h>

#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "../mesh/ranks.h"
#include "foreign_net.h"
#include "tessera/shard/fully_shard.h"
#include "tessera/shard/recompute.h"
#include "tests/process_memory.h"

namespace tessera {
namespace {

using shard::FullyShardOptions;
using shard::Level;
using shard::ShardedModule;
using shard::UnitOptions;

/// A chain of layers of odd sizes; `scale` belongs to the root and is read first.
struct Chain : torch::nn::Module {
  static constexpr int64_t kWidth = 7, kLayers = 4;
  std::vector<torch::nn::Linear> layers;
  at::Tensor scale;
  Chain() {
    for (int64_t i = 0; i < kLayers; ++i) {
      layers.push_back(register_module("layer" + std::to_string(i), torch::nn::Linear(kWidth, kWidth)));
    }
    scale = register_parameter("scale", torch::ones({kWidth}));
  }
  at::Tensor forward(at::Tensor x, bool recompute) {
    x = x * scale;
    for (auto& layer : layers) {
      const auto run = [&](const at::Tensor& h) { return torch::tanh(layer->forward(h)) + h; };
      x = recompute ? shard::recompute(run, x) : run(x);
    }
    return x;
  }
};

struct ModulesSent {
  int64_t gathered = 0, reduced = 0;
};

ModulesSent sent(mesh::Mesh& mesh, const std::string& axis) {
  const auto& traffic = axis == "world" ? mesh.world().traffic() : mesh.group(axis).traffic();
  const auto bytes = [&](const char* kind) {
    return traffic.count(kind) > 0 ? traffic.at(kind).bytes_sent : 0;
  };
  return {bytes("all_gather"), bytes("reduce_scatter")};
}

struct ModulesSetting {
  Level level = Level::kZero3;
  int64_t world = 2, accumulation = 1;
  bool recompute = false, root_stays = true, every = true;
  at::ScalarType compute = at::kFloat, reduce = at::kFloat;
};

/// What one rank sent in three steps.
ModulesSent measure_modules(const ModulesSetting& setting) {
  ModulesSent result;
  testing::run_ranks({{"shard", setting.world}}, [&](mesh::Mesh& mesh) {
    auto net = std::make_shared<Chain>();
    FullyShardOptions options;
    options.policy = shard::by_type<torch::nn::Linear>({.level = setting.level});
    options.root.level = setting.level;
    options.root_stays_gathered = setting.root_stays;
    options.reduce_every_micro_batch = setting.every;
    options.precision.compute = setting.compute;
    options.precision.reduce = setting.reduce;
    ShardedModule sharded(net, mesh, options);
    torch::optim::SGD optimizer(sharded.parameters(), 0.1);
    const std::string axis = setting.level == Level::kReplicate ? "world" : "shard";
    const ModulesSent before = sent(mesh, axis);
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      for (int64_t a = 0; a < setting.accumulation; ++a) {
        sharded.set_micro_batch(a, setting.accumulation);
        sharded
            .forward([&] {
              return net->forward(sharded.cast(at::ones({2, 7})).requires_grad_(true), setting.recompute)
                  .sum();
            })
            .backward();
      }
      optimizer.step();
    }
    const ModulesSent after = sent(mesh, axis);
    if (mesh.rank() == 0) result = {after.gathered - before.gathered, after.reduced - before.reduced};
  });
  return result;
}

/// docs/sharding.md, "On the wire".
ModulesSent modules_formula(const ModulesSetting& s) {
  const auto padded = [&](int64_t n) { return (n + s.world - 1) / s.world * s.world; };
  const int64_t layer = padded(Chain::kWidth * Chain::kWidth + Chain::kWidth), root = padded(Chain::kWidth);
  const int64_t layers = Chain::kLayers * layer, all = layers + root, a = s.accumulation, last = layer;
  const auto c = static_cast<int64_t>(at::elementSize(s.compute)),
             r = static_cast<int64_t>(at::elementSize(s.reduce));
  const bool as_made = s.every || a == 1;  // else summed here in float32 before it travels
  int64_t gathered = 0, reduced = (s.every ? a : 1) * (as_made ? std::min(c, r) : r) * all;
  switch (s.level) {
    case Level::kReplicate:
      gathered = r * all;
      reduced = r * all;
      break;
    case Level::kZero1:
      gathered = c * all;
      reduced = r * all;
      break;
    case Level::kZero2:
      gathered = c * all;
      break;
    case Level::kZero3:
      gathered = c * (a * (2 * layers - last) + (s.root_stays ? root : 2 * a * root));
      break;
  }
  return {3 * gathered / s.world * (s.world - 1), 3 * reduced / s.world * (s.world - 1)};
}

TEST(FullyShardTraffic, EqualsTheFormula) {
  for (const Level level : {Level::kReplicate, Level::kZero1, Level::kZero2, Level::kZero3}) {
    for (const int64_t world : {2, 3}) {
      for (const int64_t accumulation : {1, 3}) {
        for (const bool recompute : {false, true}) {
          for (const bool root_stays : {true, false}) {
            for (const bool every : {true, false}) {
              const ModulesSetting setting{level,      world, accumulation, recompute,
                                           root_stays, every, at::kFloat,   at::kFloat};
              const ModulesSent measured = measure_modules(setting), expected = modules_formula(setting);
              SCOPED_TRACE(concat(plan::to_string(level), " world ", world, " accumulation ", accumulation,
                                  " recompute ", recompute, " root stays ", root_stays, " every ", every));
              EXPECT_EQ(measured.gathered, expected.gathered);
              EXPECT_EQ(measured.reduced, expected.reduced);
            }
          }
        }
      }
    }
  }
}

// Two axes: the parameters travel over "shard", and the sums of a slice's gradients over "dp" as well.
TEST(FullyShardTraffic, OfTwoAxesEqualsTheFormula) {
  for (const Level level : {Level::kReplicate, Level::kZero1, Level::kZero2, Level::kZero3}) {
    SCOPED_TRACE(plan::to_string(level));
    testing::run_ranks({{"dp", 2}, {"shard", 2}}, [&](mesh::Mesh& mesh) {
      auto net = std::make_shared<Chain>();
      FullyShardOptions options;
      options.policy = shard::by_type<torch::nn::Linear>({.level = level});
      options.root.level = level;
      ShardedModule sharded(net, mesh, options);
      std::map<std::string, ModulesSent> before;
      for (const char* axis : {"shard", "dp", "world"}) before[axis] = sent(mesh, axis);
      sharded.forward([&] {
               return net->forward(at::ones({2, 7}).requires_grad_(true), false).sum();
             })
          .backward();
      // Padded to 4: slices are split once more over the replicas.
      const int64_t layer = 56, root = 8, all = Chain::kLayers * layer + root;
      const auto expect = [&](const char* axis, int64_t gathered, int64_t reduced) {
        const ModulesSent now = sent(mesh, axis);
        EXPECT_EQ(now.gathered - before[axis].gathered, gathered) << axis;
        EXPECT_EQ(now.reduced - before[axis].reduced, reduced) << axis;
      };
      if (level == Level::kReplicate) {
        expect("world", 4 * all * 3 / 4, 4 * all * 3 / 4);
        expect("shard", 0, 0);
        return;
      }
      const int64_t gathered = level == Level::kZero3 ? 2 * Chain::kLayers * layer - layer + root : all;
      expect("shard", 4 * gathered / 2, 4 * all / 2);
      expect("dp", 4 * (all / 2) / 2, 4 * (all / 2) / 2);
    });
  }
}

// Two losses of a step: what stays gathered is there for the second backward.
TEST(FullyShardTraffic, ASecondBackwardOfAStepGathersNothingThatStays) {
  for (const Level level : {Level::kZero1, Level::kZero2}) {
    testing::run_ranks({{"shard", 2}}, [&](mesh::Mesh& mesh) {
      auto net = std::make_shared<Chain>();
      FullyShardOptions options;
      options.policy = shard::by_type<torch::nn::Linear>({.level = level});
      options.root.level = level;
      ShardedModule sharded(net, mesh, options);
      const auto loss = [&] {
        return sharded.forward([&] { return net->forward(at::ones({2, 7}), false).sum(); });
      };
      const at::Tensor first = loss(), second = loss();
      const int64_t before = sent(mesh, "shard").gathered;
      first.backward();
      second.backward();
      EXPECT_EQ(sent(mesh, "shard").gathered, before);
    });
  }
}

TEST(FullyShardTraffic, CountsTheDtypesOnTheWire) {
  for (const Level level : {Level::kReplicate, Level::kZero1, Level::kZero2, Level::kZero3}) {
    for (const auto reduce : {at::kBFloat16, at::kFloat}) {
      for (const bool every : {true, false}) {
        const ModulesSetting setting{level, 2, 2, false, true, every, at::kBFloat16, reduce};
        SCOPED_TRACE(concat(plan::to_string(level), " reduce ", reduce, " every ", every));
        EXPECT_EQ(measure_modules(setting).gathered, modules_formula(setting).gathered);
        EXPECT_EQ(measure_modules(setting).reduced, modules_formula(setting).reduced);
      }
    }
  }
}

/// Operations that copy numbers, while it lives.
class CopiesCounted {
 public:
  CopiesCounted() {
    handle_ =
        at::addThreadLocalCallback(at::RecordFunctionCallback([](const at::RecordFunction& operation)
                                                                  -> std::unique_ptr<at::ObserverContext> {
                                     const std::string_view name = operation.name();
                                     count_ += name == "aten::copy_" || name == "aten::clone" ? 1 : 0;
                                     return nullptr;
                                   }).scopes({at::RecordScope::FUNCTION}));
  }
  ~CopiesCounted() { at::removeCallback(handle_); }
  CopiesCounted(const CopiesCounted&) = delete;
  CopiesCounted& operator=(const CopiesCounted&) = delete;
  int64_t taken() const { return std::exchange(count_, 0); }

 private:
  static thread_local int64_t count_;
  at::CallbackHandle handle_;
};
thread_local int64_t CopiesCounted::count_ = 0;

/// Each parameter is where its shard is, forward copies nothing of it, and nothing was gathered.
void expect_no_copy(mesh::Mesh& mesh, Level level) {
  auto net = std::make_shared<Chain>();
  FullyShardOptions options;
  options.policy = shard::by_type<torch::nn::Linear>({.level = level});
  options.root.level = level;
  ShardedModule sharded(net, mesh, options);
  torch::optim::SGD optimizer(sharded.parameters(), 0.1);
  const auto before = mesh.group("shard").traffic();
  Chain plain;
  const CopiesCounted copies;
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    copies.taken();
    const at::Tensor loss = sharded.forward([&] {
      for (const auto& shard : sharded.shards()) {
        const at::Tensor parameter = net->named_parameters()[shard.name];
        EXPECT_EQ(parameter.data_ptr(), shard.values.data_ptr()) << shard.name;
        EXPECT_TRUE(parameter.is_alias_of(shard.values)) << shard.name;
        EXPECT_EQ(shard.end - shard.begin, parameter.numel());
      }
      return net->forward(at::ones({2, 7}), false).sum();
    });
    const int64_t taken = copies.taken();
    plain.forward(at::ones({2, 7}), false).sum();
    EXPECT_EQ(taken, copies.taken()) << "a forward copies what it copies without sharding";
    loss.backward();
    for (const auto& shard : sharded.shards()) {
      EXPECT_NE(shard.values.grad().data_ptr(), nullptr);
    }
    optimizer.step();
  }
  const auto& after = mesh.group("shard").traffic();
  for (const char* kind : {"all_gather", "reduce_scatter"}) {
    const auto bytes = [&](const auto& traffic) {
      return traffic.count(kind) > 0 ? traffic.at(kind).bytes_sent : 0;
    };
    EXPECT_EQ(bytes(after), bytes(before)) << kind;
  }
}

TEST(FullyShardTraffic, WhereARankOwnsAWholeUnitNothingIsCopiedOrGathered) {
  for (const Level level : {Level::kReplicate, Level::kZero1, Level::kZero2, Level::kZero3}) {
    SCOPED_TRACE(plan::to_string(level));
    testing::run_ranks({{"shard", 1}}, [&](mesh::Mesh& mesh) {
      expect_no_copy(mesh, level);
      EXPECT_EQ(sent(mesh, "world").gathered + sent(mesh, "world").reduced, 0);
    });
    testing::run_ranks({{"dp", 2}, {"shard", 1}}, [&](mesh::Mesh& mesh) { expect_no_copy(mesh, level); });
  }
  testing::run_ranks({{"shard", 2}}, [&](mesh::Mesh& mesh) { expect_no_copy(mesh, Level::kReplicate); });
}

/// 16 layers of 8 MiB each, sharded as they are built if there is a builder.
struct Large : torch::nn::Module {
  static constexpr int64_t kWidth = 1448;
  explicit Large(shard::UnitBuilder* builder) {
    for (int i = 0; i < 16; ++i) {
      const std::string name = "layer" + std::to_string(i);
      auto layer = register_module(name, torch::nn::Linear(kWidth, kWidth));
      if (builder != nullptr) builder->shard_now(*layer, name);
    }
    head = register_module("head", torch::nn::Linear(kWidth, 3));
  }
  torch::nn::Linear head{nullptr};
};

TEST(UnitBuilder, NeverHoldsMoreThanThreeUnitsAndTheShards) {
  const auto mesh = mesh::Mesh::pretend(0, {{"shard", 8}});
  FullyShardOptions options;
  options.sync_initial_values = false;
  std::shared_ptr<Large> net;
  std::optional<ShardedModule> built;
  const int64_t peak = testing::peak_above_idle([&] {
    shard::UnitBuilder builder(*mesh, options);
    net = std::make_shared<Large>(&builder);
    built.emplace(net, std::move(builder));
  });
  const ShardedModule& sharded = *built;
  ASSERT_EQ(sharded.units().size(), 17U);
  const int64_t unit = 4 * sharded.units()[0].numel, all = 16 * unit;
  const int64_t shards = 2 * all / 8;  // values and their gradients
  EXPECT_LE(peak, 3 * unit + shards + (4 << 20)) << "bytes of a unit: " << unit;
  EXPECT_EQ(sharded.shards()[0].name, "layer0.weight");
  EXPECT_EQ(sharded.shards().size(), 34U);
}

}  // namespace
}  // namespace tessera
