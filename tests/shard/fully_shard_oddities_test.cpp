// SPDX-License-Identifier: Apache-2.0
// What else a module may hold and do: every oddity by itself.
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <cmath>

#include "../error_text.h"
#include "../mesh/ranks.h"
#include "foreign_training.h"
#include "tessera/shard/fully_shard.h"

namespace tessera {
namespace {

using shard::FullyShardOptions;
using shard::Level;
using shard::ShardedModule;
using testing::ForeignNet;

at::Tensor whole_gradient(const shard::ParameterShard& shard, mesh::Mesh& mesh) {
  at::Tensor whole = at::zeros(shard.shape, at::kDouble);
  if (shard.values.grad().defined()) {
    whole.view({-1}).narrow(0, shard.begin, shard.end - shard.begin).copy_(shard.values.grad());
  }
  mesh.world().all_reduce(whole, "test");
  return whole.to(at::kFloat);
}

/// Convolution, normalisations, recurrence, attention, and an autograd function of its own.
struct Times : torch::autograd::Function<Times> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& w) {
    context->save_for_backward({x, w});
    return x.mm(w.t());
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradient) {
    const auto saved = context->get_saved_variables();
    return {gradient[0].mm(saved[1]), gradient[0].t().mm(saved[0])};
  }
};

struct Zoo : torch::nn::Module {
  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Linear linear{nullptr};
  torch::nn::LSTM lstm{nullptr};
  torch::nn::Embedding embedding{nullptr};
  torch::nn::LayerNorm layer_norm{nullptr};
  torch::nn::MultiheadAttention attention{nullptr};
  at::Tensor weight;
  Zoo() {
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 4, 3)));
    norm = register_module("norm", torch::nn::BatchNorm2d(4));
    linear = register_module("linear", torch::nn::Linear(4 * 36, 5));
    lstm = register_module("lstm", torch::nn::LSTM(5, 5));
    embedding = register_module("embedding", torch::nn::Embedding(10, 5));
    layer_norm = register_module("layer_norm", torch::nn::LayerNorm(std::vector<int64_t>{5}));
    attention = register_module("attention",
                                torch::nn::MultiheadAttention(torch::nn::MultiheadAttentionOptions(5, 5)));
    weight = register_parameter("weight", torch::randn({5, 5}));
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor h = linear->forward(torch::relu(norm->forward(conv->forward(x))).flatten(1));
    h = layer_norm->forward(Times::apply(h, weight)) + embedding->forward(at::arange(x.size(0)));
    const auto [sequence, state] = lstm->forward(h.unsqueeze(0));
    const auto [attended, scores] = attention->forward(sequence, sequence, sequence);
    return attended.squeeze(0) + h.mm(embedding->weight.t()).sum();
  }
};

TEST(Oddities, EveryKindOfLayerAndOwnAutogradFunctionsAreBitwise) {
  const at::Tensor x = testing::normal("x", {3, 1, 8, 8});
  Zoo plain;
  testing::set_values(plain);
  const at::Tensor expected = plain.forward(x).square().mean();
  expected.backward();
  for (const Level level : {Level::kReplicate, Level::kZero1, Level::kZero2, Level::kZero3}) {
    testing::run_ranks({{"shard", 2}}, [&](mesh::Mesh& mesh) {
      auto net = std::make_shared<Zoo>();
      testing::set_values(*net);
      ShardedModule sharded(net, mesh, testing::every_child({.level = level}));
      for (int repeat = 0; repeat < 2; ++repeat) {  // with the order unknown, and known
        for (at::Tensor& parameter : sharded.parameters()) parameter.mutable_grad().reset();
        const at::Tensor loss = sharded.forward([&] { return net->forward(x).square().mean(); });
        EXPECT_EQ(loss.item<float>(), expected.item<float>());
        loss.backward();
        for (const auto& shard : sharded.shards()) {
          if (level == Level::kReplicate) {
            EXPECT_TRUE(
                shard.values.grad().view(shard.shape).equal(plain.named_parameters()[shard.name].grad()));
          } else {
            EXPECT_TRUE(whole_gradient(shard, mesh).equal(plain.named_parameters()[shard.name].grad()))
                << shard.name;
          }
        }
      }
    });
  }
}

TEST(Oddities, FrozenUnusedAndEmptyParameters) {
  testing::run_ranks({{"shard", 3}}, [](mesh::Mesh& mesh) {
    auto net = std::make_shared<ForeignNet>();
    ShardedModule sharded(net, mesh, testing::every_child({}));
    EXPECT_EQ(sharded.shards().size(), 14U);
    EXPECT_EQ(sharded.parameters().size(), 12U);
    for (const auto& [name, parameter] : sharded.named_parameters()) {
      EXPECT_TRUE(parameter.requires_grad()) << name;
      EXPECT_EQ(parameter.dim(), 1) << name;
      EXPECT_EQ(name.find("frozen"), std::string::npos);
    }
    sharded.forward([&] { return net->forward(at::arange(4), at::ones({4, 3})).sum(); }).backward();
    for (const auto& shard : sharded.shards()) {
      const bool used = shard.trainable && shard.name != "unused" && shard.name != "empty";
      EXPECT_EQ(shard.values.grad().defined(), used) << shard.name;
    }
  });
}

// Rank 0's loss depends on `a`, rank 1's on `b`: both hold slices of both.
TEST(Oddities, AParameterThatOneRankUsesGetsAGradientOnAll) {
  struct Two : torch::nn::Module {
    at::Tensor a, b;
    Two() {
      a = register_parameter("a", torch::ones({5}));
      b = register_parameter("b", torch::ones({5}));
    }
  };
  testing::run_ranks({{"shard", 2}}, [](mesh::Mesh& mesh) {
    auto net = std::make_shared<Two>();
    ShardedModule sharded(net, mesh);
    sharded.forward([&] { return (mesh.rank() == 0 ? net->a : net->b).sum() * 4; }).backward();
    for (const auto& shard : sharded.shards()) {
      EXPECT_TRUE(shard.values.grad().defined());
      EXPECT_TRUE(whole_gradient(shard, mesh).equal(at::full({5}, 2.0F)));
    }
  });
}

TEST(Oddities, ParametersOfSeveralDtypesAndBuffers) {
  struct Mixed : torch::nn::Module {
    torch::nn::Linear single{nullptr}, twice{nullptr};
    at::Tensor steps, table;
    Mixed() {
      single = register_module("single", torch::nn::Linear(4, 3));
      twice = register_module("twice", torch::nn::Linear(3, 2));
      twice->to(at::kDouble);
      steps = register_parameter("steps", at::arange(3), /*requires_grad=*/false);
      table = register_buffer("table", torch::ones({3}));
    }
    at::Tensor forward(const at::Tensor& x) {
      return twice->forward((single->forward(x) * table + steps).to(at::kDouble));
    }
  };
  const at::Tensor x = testing::normal("x", {6, 4});
  Mixed plain;
  testing::set_values(plain);
  plain.forward(x).sum().backward();
  testing::run_ranks({{"shard", 2}}, [&](mesh::Mesh& mesh) {
    auto net = std::make_shared<Mixed>();
    testing::set_values(*net);
    if (mesh.rank() == 1) {
      const at::NoGradGuard no_grad;
      net->steps.zero_();
      net->table.zero_();
    }
    ShardedModule sharded(net, mesh);
    EXPECT_TRUE(net->steps.equal(at::arange(3)));  // rank 0's
    EXPECT_TRUE(net->table.equal(at::ones({3})));
    const at::Tensor loss = sharded.forward([&] { return net->forward(x).sum(); });
    loss.backward();
    for (const auto& shard : sharded.shards()) {
      const at::Tensor expected = plain.named_parameters()[shard.name].grad();
      EXPECT_EQ(shard.values.scalar_type(), expected.scalar_type());
      EXPECT_TRUE(whole_gradient(shard, mesh).equal(expected.to(at::kFloat))) << shard.name;
    }
    EXPECT_EQ(sharded.shards().size(), 4U);  // integers stay whole
  });
  testing::run_ranks({{"shard", 2}}, [&](mesh::Mesh& mesh) {
    auto net = std::make_shared<Mixed>();
    FullyShardOptions options;
    options.precision.buffer = at::kBFloat16;
    ShardedModule sharded(net, mesh, options);
    EXPECT_EQ(net->table.scalar_type(), at::kBFloat16);
  });
}

TEST(Oddities, SeveralBackwardCallsAddUp) {
  const at::Tensor extra = testing::normal("extra", {4, 3});
  ForeignNet plain;
  testing::set_values(plain);
  plain.eval();
  (plain.forward(at::arange(4), extra).sum() * 5).backward();
  testing::run_ranks({{"shard", 2}}, [&](mesh::Mesh& mesh) {
    auto net = std::make_shared<ForeignNet>();
    testing::set_values(*net);
    net->eval();
    ShardedModule sharded(net, mesh, testing::every_child({}));
    const auto [once, twice] = sharded.forward([&] {
      const at::Tensor sum = net->forward(at::arange(4), extra).sum();
      return std::pair(sum, sum * 2);
    });
    once.backward({}, /*retain_graph=*/true);
    twice.backward({}, /*retain_graph=*/true);
    twice.backward();
    for (const auto& shard : sharded.shards()) {
      const at::Tensor expected = plain.named_parameters()[shard.name].grad();
      if (!expected.defined() || expected.numel() == 0) continue;
      const double error = (whole_gradient(shard, mesh) - expected).abs().max().item<double>();
      EXPECT_LE(error, 1e-6 * expected.abs().max().item<double>()) << shard.name;
    }
  });
}

TEST(Oddities, EvaluationWithoutGradients) {
  const at::Tensor extra = testing::normal("extra", {4, 3});
  testing::run_ranks({{"shard", 2}}, [&](mesh::Mesh& mesh) {
    ForeignNet plain;
    testing::set_values(plain);
    plain.eval();
    auto net = std::make_shared<ForeignNet>();
    testing::set_values(*net);
    net->eval();
    ShardedModule sharded(net, mesh, testing::every_child({}));
    for (int repeat = 0; repeat < 3; ++repeat) {
      const at::NoGradGuard no_grad;
      EXPECT_TRUE(sharded.forward([&] { return net->forward(at::arange(4), extra); })
                      .equal(plain.forward(at::arange(4), extra)));
    }
    const c10::InferenceMode inference;
    EXPECT_TRUE(sharded.forward([&] { return net->forward(at::arange(4), extra); })
                    .equal(plain.forward(at::arange(4), extra)));
  });
}

TEST(Oddities, ParametersAreReadInsideForwardOnly) {
  testing::run_ranks({{"shard", 2}}, [](mesh::Mesh& mesh) {
    auto net = std::make_shared<ForeignNet>();
    at::Tensor weight;
    {
      ShardedModule sharded(net, mesh, testing::every_child({}));
      weight = net->fc1->weight;
      EXPECT_EQ(weight.size(0), ForeignNet::kHidden);
      EXPECT_EQ(
          error_text([&] { weight.norm(); }),
          "[shard.touch] aten::norm reads a sharded parameter outside ShardedModule::forward and backward; "
          "call it in the body given to forward(), read parameters() or use with_full_parameters()");
      EXPECT_EQ(error_text([&] { sharded.set_micro_batch(2, 2); }),
                "[shard.set_micro_batch] the index is 2 and the count 2: expected 0 <= index < count");
      double norm = 0;
      sharded.with_full_parameters([&] { norm = weight.norm().item<double>(); });
      EXPECT_GT(norm, 0);
    }
    EXPECT_EQ(error_text([&] { weight.norm(); }),
              "[shard.touch] a sharded parameter is used, but its ShardedModule was destroyed; keep the "
              "ShardedModule as long as the network is used");
  });
}

TEST(Oddities, TwoShardedNetworksInOneBackward) {
  const at::Tensor x = testing::normal("x", {3, 4});
  torch::nn::Linear first(4, 4), second(4, 4);
  testing::set_values(*first);
  testing::set_values(*second);
  second->forward(torch::tanh(first->forward(x))).sum().backward();
  testing::run_ranks({{"shard", 2}}, [&](mesh::Mesh& mesh) {
    auto a = std::make_shared<torch::nn::LinearImpl>(4, 4), b = std::make_shared<torch::nn::LinearImpl>(4, 4);
    for (const auto& [copy, original] : {std::pair(a, first), std::pair(b, second)}) {
      const at::NoGradGuard no_grad;
      copy->weight.copy_(original->weight);
      copy->bias.copy_(original->bias);
    }
    ShardedModule one(a, mesh), two(b, mesh);
    const at::Tensor hidden = one.forward([&] { return torch::tanh(a->forward(x)); });
    two.forward([&] { return b->forward(hidden).sum(); }).backward();
    EXPECT_TRUE(whole_gradient(one.shards()[0], mesh).equal(first->weight.grad()));
    EXPECT_TRUE(whole_gradient(two.shards()[0], mesh).equal(second->weight.grad()));
    EXPECT_EQ(one.step(), 1);
  });
}

TEST(Oddities, InputsAreCastToTheDtypeThatComputes) {
  testing::run_ranks({{"shard", 1}}, [](mesh::Mesh& mesh) {
    const auto net_of = [](at::ScalarType dtype) {
      auto net = std::make_shared<torch::nn::LinearImpl>(4, 4);
      net->to(dtype);
      return net;
    };
    const at::Tensor input = at::ones({2, 4}, at::kDouble);
    EXPECT_EQ(ShardedModule(net_of(at::kDouble), mesh).cast(input).scalar_type(), at::kDouble);
    EXPECT_EQ(ShardedModule(net_of(at::kFloat), mesh).cast(input).scalar_type(), at::kFloat);
    FullyShardOptions options;
    options.precision.compute = at::kBFloat16;
    EXPECT_EQ(ShardedModule(net_of(at::kDouble), mesh, options).cast(input).scalar_type(), at::kBFloat16);
    EXPECT_EQ(ShardedModule(net_of(at::kFloat), mesh).cast(at::ones({2}, at::kLong)).scalar_type(),
              at::kLong);
  });
}

TEST(Oddities, NormsOfWholeTensorsForLars) {
  const at::Tensor extra = testing::normal("extra", {4, 3});
  testing::run_ranks({{"dp", 2}, {"shard", 2}}, [&](mesh::Mesh& mesh) {
    ForeignNet plain;
    testing::set_values(plain);
    plain.eval();
    plain.forward(at::arange(4), extra).sum().backward();
    auto net = std::make_shared<ForeignNet>();
    testing::set_values(*net);
    net->eval();
    FullyShardOptions options = testing::every_child({});
    options.root.level = Level::kReplicate;
    ShardedModule sharded(net, mesh, options);
    sharded.forward([&] { return net->forward(at::arange(4), extra).sum(); }).backward();
    const std::vector<at::Tensor> parameters = sharded.parameters();
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& parameter : parameters) gradients.push_back(parameter.grad());
    const at::Tensor weights = sharded.tensor_norms(parameters), slopes = sharded.tensor_norms(gradients);
    int64_t index = 0;
    const at::NoGradGuard no_grad;
    for (const auto& [name, parameter] : sharded.named_parameters()) {
      const at::Tensor whole = plain.named_parameters()[name];
      const double w = weights[index].item<double>(), g = slopes[index].item<double>();
      ++index;
      EXPECT_NEAR(w, whole.norm().item<double>(), 1e-6 * (1 + w)) << name;
      if (!whole.grad().defined()) {
        EXPECT_EQ(g, 0) << name;
        continue;
      }
      EXPECT_NEAR(g, whole.grad().norm().item<double>(), 1e-5 * (1 + g)) << name;
      if (g == 0) continue;
      parameter.sub_(parameter.grad(), 0.01 * w / g);
      whole.sub_(whole.grad(), 0.01 * whole.norm().item<double>() / whole.grad().norm().item<double>());
    }
    sharded.parameters_changed();
    sharded.with_full_parameters([&] {
      for (const auto& entry : net->named_parameters()) {
        const at::Tensor expected = plain.named_parameters()[entry.key()];
        EXPECT_TRUE(at::allclose(entry.value(), expected, 1e-5, 1e-6)) << entry.key();
      }
    });
  });
}

}  // namespace
}  // namespace tessera
