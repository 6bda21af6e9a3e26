// SPDX-License-Identifier: Apache-2.0
// Training of a module that knows nothing of sharding, with it and without.
#pragma once

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim.h>

#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "../mesh/ranks.h"
#include "foreign_net.h"
#include "tessera/shard/fully_shard.h"

namespace tessera::testing {

constexpr int64_t kBatch = 12, kSteps = 3;
constexpr double kClip = 0.5;

struct Result {
  std::vector<double> values;                    // loss and gradient norm of each step
  std::map<std::string, at::Tensor> parameters;  // whole, float32, after the last
};

/// Makes an optimizer over these parameters.
using MakeOptimizer = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)>;

inline std::unique_ptr<torch::optim::Optimizer> sgd(std::vector<at::Tensor> parameters) {
  return std::make_unique<torch::optim::SGD>(std::move(parameters),
                                             torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01));
}

/// What of a training does not belong to sharding.
struct Training {
  int64_t accumulation = 1;
  bool recompute = false;
  bool same_samples = false;  // every rank and micro-batch has them all: 1, 2, 4 of them reorder no sum
  bool clip = true;
  MakeOptimizer optimizer = sgd;
  at::Device device = at::kCPU;
};

/// Mean loss of `count` samples from `begin`. BatchNorm in eval mode keeps samples independent.
inline at::Tensor loss_of(ForeignNet& net, int64_t begin, int64_t count) {
  const at::Tensor extra = normal("extra", {kBatch, 3}), goal = normal("goal", {kBatch, ForeignNet::kTokens}),
                   tokens = at::arange(kBatch).remainder(ForeignNet::kTokens);
  const at::Device device = net.scale.device();
  const auto part = [&](const at::Tensor& whole) { return whole.narrow(0, begin, count).to(device); };
  const at::Tensor out = net.forward(part(tokens), part(extra));
  return (out.to(at::kFloat) - part(goal)).square().sum(1).mean();
}

inline void put_whole(Result& result, torch::nn::Module& net) {
  for (const auto& entry : net.named_parameters()) {
    result.parameters[entry.key()] = entry.value().detach().to(at::kCPU, at::kFloat).clone();
  }
}

/// Without sharding: float32 masters, and a network in the compute dtype that is given their values before
/// each step.
inline Result unsharded(at::ScalarType compute = at::kFloat, bool clip = true,
                        const MakeOptimizer& make_optimizer = sgd) {
  ForeignNet masters, net;
  set_values(masters);
  net.eval();
  net.to(compute);
  const auto optimizer = make_optimizer(masters.parameters());
  const auto give_values = [&] {
    const at::NoGradGuard no_grad;
    for (auto& entry : net.named_parameters()) entry.value().copy_(masters.named_parameters()[entry.key()]);
  };
  Result result;
  for (int64_t step = 0; step < kSteps; ++step) {
    give_values();
    net.zero_grad();
    const at::Tensor loss = loss_of(net, 0, kBatch);
    loss.backward();
    for (auto& entry : net.named_parameters()) {
      const at::Tensor& gradient = entry.value().grad();
      if (gradient.defined())
        masters.named_parameters()[entry.key()].mutable_grad() = gradient.to(at::kFloat);
    }
    result.values.push_back(loss.item<double>());
    if (clip) {
      result.values.push_back(torch::nn::utils::clip_grad_norm_(masters.parameters(), kClip));
    }
    optimizer->step();
  }
  give_values();
  put_whole(result, net);
  return result;
}

inline Result sharded(mesh::Mesh& mesh, const shard::FullyShardOptions& options,
                      const Training& training = {}) {
  auto net = std::make_shared<ForeignNet>();
  if (mesh.rank() == 0) set_values(*net);  // the others are given rank 0's
  net->eval();
  net->recomputes = training.recompute;
  net->to(training.device);
  shard::ShardedModule module(net, mesh, options);
  const auto optimizer = training.optimizer(module.parameters());
  const int64_t parts = mesh.world_size() * training.accumulation;
  const int64_t count = training.same_samples ? kBatch : kBatch / parts;
  Result result;
  for (int64_t step = 0; step < kSteps; ++step) {
    optimizer->zero_grad();
    double sum = 0;
    for (int64_t a = 0; a < training.accumulation; ++a) {
      module.set_micro_batch(a, training.accumulation);
      const int64_t part = training.same_samples ? 0 : mesh.rank() * training.accumulation + a;
      at::Tensor loss = module.forward([&] { return loss_of(*net, part * count, count); });
      sum += loss.item<double>();
      if (options.gradients == shard::Gradients::kSum) loss = loss / parts;
      loss.backward();
    }
    at::Tensor total = at::full({1}, sum / static_cast<double>(parts), at::kDouble);
    mesh.world().all_reduce(total, "loss");
    result.values.push_back(total.item<double>());
    if (training.clip) result.values.push_back(module.clip_grad_norm(kClip));
    optimizer->step();
  }
  module.with_full_parameters([&] { put_whole(result, *net); });
  return result;
}

inline void expect_close(const Result& a, const Result& b, double tolerance) {
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

inline void expect_equal(const Result& a, const Result& b) {
  EXPECT_EQ(a.values, b.values);
  ASSERT_EQ(a.parameters.size(), b.parameters.size());
  for (const auto& [name, value] : b.parameters) EXPECT_TRUE(a.parameters.at(name).equal(value)) << name;
}

/// Every child that has parameters is a unit like `unit`, and so is the rest.
inline shard::FullyShardOptions every_child(const shard::UnitOptions& unit) {
  shard::FullyShardOptions options;
  options.policy = [unit](const std::string&, torch::nn::Module&, int64_t numel) {
    return numel > 0 ? std::optional(unit) : std::nullopt;
  };
  options.root = unit;
  return options;
}

/// Units of all four levels in one network.
inline shard::FullyShardOptions every_level() {
  using shard::Level, shard::UnitOptions;
  shard::FullyShardOptions options;
  options.policy = [](const std::string& name, torch::nn::Module&, int64_t) -> std::optional<UnitOptions> {
    if (name == "embedding") return UnitOptions{.level = Level::kReplicate};
    if (name == "fc1") return UnitOptions{.level = Level::kZero1};
    if (name == "twice") return UnitOptions{.level = Level::kZero2};
    if (name == "fc2") return UnitOptions{.level = Level::kZero3};
    return std::nullopt;
  };
  return options;
}

}  // namespace tessera::testing
