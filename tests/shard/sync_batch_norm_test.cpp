// SPDX-License-Identifier: Apache-2.0
// Statistics over all ranks: ranks with parts of a batch compute what one rank with all of it does.
#include "tessera/shard/sync_batch_norm.h"

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>

#include "../mesh/ranks.h"
#include "tessera/shard/fully_shard.h"
#include "tessera/shard/recompute.h"

namespace tessera::shard {
namespace {

struct SyncResult {
  at::Tensor output, input_gradient, weight_gradient, bias_gradient, mean, variance;
};

/// One batch, and weights with which its loss has a gradient everywhere.
struct Batch {
  Batch() {
    torch::manual_seed(3);
    input = torch::randn({5, 4, 3, 2}) * 2 + 50;
    factors = torch::randn({5, 4, 3, 2});
  }
  at::Tensor input, factors;
};

/// Samples [first, last) of the batch.
SyncResult run(const Batch& batch, mesh::Group* group, int64_t first, int64_t last) {
  SyncBatchNorm2d norm(4, group);
  {
    const torch::NoGradGuard no_grad;
    norm->weight.copy_(torch::tensor({1.0F, -2.0F, 0.5F, 3.0F}));
    norm->bias.copy_(torch::tensor({0.0F, 1.0F, 2.0F, -1.0F}));
  }
  at::Tensor input = batch.input.slice(0, first, last).clone().set_requires_grad(true);
  const at::Tensor output = norm->forward(input);
  (output.square() * batch.factors.slice(0, first, last)).sum().backward();
  EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), 1);
  return {output.detach(),   input.grad(),       norm->weight.grad(),
          norm->bias.grad(), norm->running_mean, norm->running_var};
}

void expect_near(const at::Tensor& a, const at::Tensor& b, double tolerance) {
  ASSERT_EQ(a.sizes(), b.sizes());
  EXPECT_LE((a - b).abs().max().item<double>(), tolerance * (1 + b.abs().max().item<double>()));
}

TEST(SyncBatchNorm, PartsOfABatchGiveWhatTheWholeGives) {
  const Batch batch;
  const SyncResult whole = run(batch, nullptr, 0, 5);
  for (const auto& bounds : {std::vector<int64_t>{0, 3, 5}, {0, 1, 2, 5}}) {
    const auto world = static_cast<int64_t>(bounds.size()) - 1;
    std::vector<SyncResult> parts(bounds.size() - 1);
    testing::run_ranks({{"shard", world}}, [&](mesh::Mesh& mesh) {
      const auto rank = static_cast<size_t>(mesh.rank());
      parts[rank] = run(batch, &mesh.world(), bounds[rank], bounds[rank + 1]);
    });
    std::vector<at::Tensor> outputs, gradients;
    at::Tensor weight = torch::zeros(4), bias = torch::zeros(4);
    for (const SyncResult& part : parts) {
      outputs.push_back(part.output);
      gradients.push_back(part.input_gradient);
      weight += part.weight_gradient;
      bias += part.bias_gradient;
      expect_near(part.mean, whole.mean, 1e-6);
      expect_near(part.variance, whole.variance, 1e-5);
    }
    expect_near(torch::cat(outputs), whole.output, 1e-5);
    expect_near(torch::cat(gradients), whole.input_gradient, 2e-5);
    expect_near(weight, whole.weight_gradient, 1e-5);
    expect_near(bias, whole.bias_gradient, 1e-5);
  }
}

// A micro-batch in which no rank has a sample: the last ones of a short step.
TEST(SyncBatchNorm, AnEmptyBatchLeavesStatisticsAndGradientsAlone) {
  testing::run_ranks({{"shard", 2}}, [](mesh::Mesh& mesh) {
    SyncBatchNorm2d norm(4, &mesh.world());
    at::Tensor input = torch::empty({0, 4, 3, 2}).set_requires_grad(true);
    norm->forward(input).sum().backward();
    EXPECT_TRUE(norm->running_mean.equal(torch::zeros({4})));
    EXPECT_TRUE(norm->running_var.equal(torch::ones({4})));
    EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), 0);
    EXPECT_TRUE(norm->weight.grad().equal(torch::zeros({4})));
    EXPECT_EQ(input.grad().numel(), 0);
  });
}

TEST(SyncBatchNorm, EvaluationUsesTheRunningStatistics) {
  testing::run_ranks({{"shard", 2}}, [](mesh::Mesh& mesh) {
    SyncBatchNorm2d norm(2, &mesh.world());
    norm->eval();
    const at::Tensor input = torch::full({1, 2, 2, 2}, static_cast<float>(mesh.rank()));
    expect_near(norm->forward(input), input / std::sqrt(1 + 1e-5), 1e-6);
    EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), 0);
  });
}

/// A convolution and a norm, images channels last.
struct Small : torch::nn::Module {
  torch::nn::Conv2d convolution{nullptr};
  SyncBatchNorm2d norm{nullptr};
  Small() {
    convolution = register_module("convolution", torch::nn::Conv2d(3, 20, 3));
    norm = register_module("norm", SyncBatchNorm2d(20));
  }
  at::Tensor forward(const at::Tensor& x) { return norm->forward(convolution->forward(x)).square(); }
};

// Its kernels read memory themselves: a sharded parameter's has come by then, and a second run of a segment
// leaves the statistics.
TEST(SyncBatchNorm, OfOneRankIsTheSameShardedAndRecomputed) {
  // Made once: ranks are threads here, and share one generator.
  torch::manual_seed(4);
  const at::Tensor input = torch::randn({4, 3, 9, 7}).contiguous(at::MemoryFormat::ChannelsLast);
  torch::manual_seed(5);
  Small plain;
  plain.forward(input).mean().backward();
  testing::run_ranks({{"shard", 2}}, [&](mesh::Mesh& mesh) {
    const auto net = std::make_shared<Small>();
    {
      const torch::NoGradGuard no_grad;
      for (const auto& item : plain.named_parameters())
        net->named_parameters()[item.key()].copy_(item.value());
    }
    FullyShardOptions options;
    options.policy = by_type<torch::nn::Conv2d, SyncBatchNorm2d>();
    ShardedModule sharded(net, mesh, options);
    sharded
        .forward(
            [&] { return recompute([&](const at::Tensor& h) { return net->forward(h); }, input).mean(); })
        .backward();
    for (const ParameterShard& shard : sharded.shards()) {
      if (shard.begin == shard.end) continue;
      const at::Tensor whole = plain.named_parameters()[shard.name].grad().flatten();
      expect_near(shard.values.grad(), whole.slice(0, shard.begin, shard.end), 1e-6);
    }
    EXPECT_TRUE(net->norm->running_mean.equal(plain.norm->running_mean));
    EXPECT_TRUE(net->norm->running_var.equal(plain.norm->running_var));
    EXPECT_EQ(net->norm->num_batches_tracked.item<int64_t>(), 1);
  });
}

TEST(AverageBuffers, GivesEveryRankTheMeanOfRunningStatistics) {
  testing::run_ranks({{"shard", 3}}, [](mesh::Mesh& mesh) {
    const auto rank = static_cast<float>(mesh.rank());
    const auto net = std::make_shared<torch::nn::BatchNorm2dImpl>(2);
    FullyShardOptions options;
    options.precision.buffer = at::kBFloat16;
    ShardedModule sharded(net, mesh, options);
    net->running_mean.fill_(3 * rank);
    net->running_var.copy_(torch::tensor({1 + rank, 0.5F}));
    net->num_batches_tracked.fill_(5 + mesh.rank());
    sharded.average_buffers();
    EXPECT_TRUE(net->running_mean.equal(torch::full({2}, 3, at::kBFloat16)));
    EXPECT_TRUE(net->running_var.equal(torch::tensor({2.0F, 0.5F}).to(at::kBFloat16)));
    EXPECT_EQ(net->num_batches_tracked.item<int64_t>(), 5) << "no mean of counts: rank 0's";
    EXPECT_EQ(mesh.world().traffic().at("all_reduce").calls, 1);
  });
}

}  // namespace
}  // namespace tessera::shard
