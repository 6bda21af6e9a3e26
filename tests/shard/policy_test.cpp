// SPDX-License-Identifier: Apache-2.0
// Which modules become units, and every setting that is refused.
#include "tessera/shard/policy.h"

#include <gtest/gtest.h>
#include <torch/nn.h>

#include "../error_text.h"
#include "foreign_net.h"
#include "tessera/shard/fully_shard.h"

namespace tessera {
namespace {

using shard::FullyShardOptions;
using shard::Level;
using shard::Policy;
using shard::ShardedModule;
using shard::UnitBuilder;
using shard::UnitOptions;

struct BlockImpl : torch::nn::Module {
  torch::nn::Linear in{nullptr}, out{nullptr};
  BlockImpl() {
    in = register_module("in", torch::nn::Linear(10, 10));
    out = register_module("out", torch::nn::Linear(10, 10));
  }
};
TORCH_MODULE(Block);

struct PolicyNet : torch::nn::Module {
  Block first{nullptr}, second{nullptr};
  torch::nn::Linear head{nullptr};
  PolicyNet() {
    first = register_module("first", Block());
    second = register_module("second", Block());
    head = register_module("head", torch::nn::Linear(10, 3));
  }
};

std::unique_ptr<mesh::Mesh> two_ranks() { return mesh::Mesh::pretend(0, {{"shard", 2}}); }

FullyShardOptions with(Policy policy) {
  FullyShardOptions options;
  options.policy = std::move(policy);
  options.sync_initial_values = false;
  return options;
}

std::string units_of(const Policy& policy) {
  const auto mesh = two_ranks();
  std::string text;
  for (const auto& unit : ShardedModule(std::make_shared<PolicyNet>(), *mesh, with(policy)).units()) {
    text += concat(text.empty() ? "" : " ", unit.name, ":", unit.numel);
  }
  return text;
}

TEST(Policy, ChoosesUnitsChildrenFirst) {
  EXPECT_EQ(units_of(shard::by_parameter_count(100)),
            "first.in:110 first.out:110 second.in:110 second.out:110 root:33");
  EXPECT_EQ(units_of(shard::by_parameter_count(111)), "first:220 second:220 root:33");
  EXPECT_EQ(units_of(shard::by_parameter_count(221)), "root:473");
  EXPECT_EQ(units_of(shard::no_units()), "root:473");
  EXPECT_EQ(units_of(nullptr), "root:473");
  EXPECT_EQ(units_of(shard::by_type<Block>()), "first:220 second:220 root:33");
  EXPECT_EQ((units_of(shard::by_type<BlockImpl, torch::nn::LinearImpl>())),
            "first.in:110 first.out:110 second.in:110 second.out:110 head:33");
  EXPECT_EQ(units_of([](const std::string& name, torch::nn::Module&, int64_t) {
              return name == "second.in" || name == "second" ? std::optional(UnitOptions()) : std::nullopt;
            }),
            "second.in:110 second:110 root:253");
}

TEST(Policy, GivesEachUnitItsOptions) {
  const auto mesh = two_ranks();
  const ShardedModule sharded(std::make_shared<PolicyNet>(), *mesh,
                              with(shard::by_type<Block>({.level = Level::kZero2})));
  EXPECT_EQ(sharded.units()[0].level, Level::kZero2);
  EXPECT_EQ(sharded.units()[0].padded_numel, 220);
  EXPECT_EQ(sharded.units()[2].level, Level::kZero3);
  EXPECT_EQ(sharded.units()[2].padded_numel, 34);
}

TEST(Policy, SettingsThatAreRefused) {
  const auto mesh = two_ranks();
  const auto wrap = [&](FullyShardOptions options) {
    return error_text([&] { ShardedModule(std::make_shared<PolicyNet>(), *mesh, std::move(options)); });
  };
  EXPECT_EQ(error_text([] { shard::by_parameter_count(0); }),
            "[shard.by_parameter_count] the threshold is 0: expected at least 1 parameter; no_units() keeps "
            "everything in the root unit");
  FullyShardOptions options = with(shard::no_units());
  options.prefetch = -1;
  EXPECT_EQ(wrap(options),
            "[shard.ShardedModule] prefetch is -1, units_in_flight 0 and bucket_bytes 26214400: expected "
            "prefetch and units_in_flight of at least 0 and bucket_bytes of at least 1");
  for (const char* setting : {"compute", "reduce", "buffer", "master"}) {
    options = with(shard::no_units());
    auto& precision = options.precision;
    (setting[0] == 'c'   ? precision.compute
     : setting[0] == 'r' ? precision.reduce
     : setting[0] == 'b' ? precision.buffer
                         : precision.master) = at::kHalf;
    EXPECT_EQ(wrap(options), concat("[shard.ShardedModule] precision.", setting,
                                    " is Half: expected float32, bfloat16 or float64"));
  }
}

TEST(UnitBuilder, ErrorsNameWhatIsWrong) {
  const auto mesh = two_ranks();
  UnitBuilder builder(*mesh, with(shard::no_units()));
  Block stranger;
  EXPECT_EQ(error_text([&] { builder.shard_now(*stranger, "block", {.recompute = true}); }),
            "[shard.shard_now] block cannot be recomputed, because it is sharded manually; write "
            "shard::recompute where it is called");
  builder.shard_now(*stranger, "block");
  builder.shard_now(*stranger, "block");  // nothing is left to shard
  EXPECT_EQ(error_text([&] { ShardedModule(std::make_shared<PolicyNet>(), std::move(builder)); }),
            "[shard.ShardedModule] 4 sharded parameters are not among the network's named_parameters(); "
            "register the children that shard_now() was given");
}

TEST(ShardedModule, NormsOfTensorsThatDoNotFit) {
  const auto mesh = two_ranks();
  ShardedModule sharded(std::make_shared<PolicyNet>(), *mesh, with(shard::by_type<Block>()));
  EXPECT_EQ(error_text([&] { sharded.tensor_norms({}); }),
            "[shard.tensor_norms] 0 tensors are given for 10 parameters: expected one tensor for each of "
            "parameters()");
  std::vector<at::Tensor> tensors = sharded.parameters();
  tensors[0] = at::ones({3});
  EXPECT_EQ(error_text([&] { sharded.tensor_norms(tensors); }),
            "[shard.tensor_norms] tensor 0 has 3 elements: expected 100, the size of the local shard of "
            "first.in.weight; give the tensors in the order of parameters()");
}

TEST(ShardedModule, GoesOnAfterAnErrorOfTheBody) {
  const auto mesh = two_ranks();
  auto net = std::make_shared<PolicyNet>();
  ShardedModule sharded(net, *mesh, with(shard::by_type<Block>()));
  const at::Tensor x = at::ones({2, 10});
  const auto body = [&] { return net->head->forward(net->first->in->forward(x)).sum(); };
  EXPECT_THROW(sharded.forward([&] {
    body();
    throw std::runtime_error("mine");
  }),
               std::runtime_error);
  at::Tensor loss = sharded.forward(body);
  loss.register_hook([](const at::Tensor&) { throw std::runtime_error("mine"); });
  EXPECT_THROW(loss.backward(), std::runtime_error);
  sharded.forward(body).backward();
  EXPECT_EQ(sharded.step(), 1);
  EXPECT_TRUE(sharded.parameters()[0].grad().defined());
}

}  // namespace
}  // namespace tessera
