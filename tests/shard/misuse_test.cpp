// SPDX-License-Identifier: Apache-2.0
// What a program may do to a sharded network that would hang or train something else without a word: it works
// as it does without sharding, or is one clear error.
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn.h>
#include <torch/optim.h>
#include <torch/serialize.h>

#include <sstream>
#include <thread>

#include "../error_text.h"
#include "../mesh/ranks.h"
#include "tessera/shard/fully_shard.h"

namespace tessera {
namespace {

using shard::FullyShardOptions;
using shard::Level;
using shard::ShardedModule;

struct Net : torch::nn::Module {
  torch::nn::Linear first{nullptr}, second{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  Net() {
    first = register_module("first", torch::nn::Linear(4, 6));
    norm = register_module("norm", torch::nn::BatchNorm1d(6));
    second = register_module("second", torch::nn::Linear(6, 2));
    const at::NoGradGuard no_grad;
    for (auto& parameter : parameters()) {
      parameter.copy_(at::arange(parameter.numel()).view(parameter.sizes()).to(at::kFloat).sin());
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto dtype = first->weight.scalar_type();
    return second->forward(at::tanh(norm->forward(first->forward(x.to(dtype)))))
        .to(at::kFloat)
        .square()
        .mean();
  }
};

at::Tensor input(int64_t from = 0) { return (at::arange(12) + from).view({3, 4}).to(at::kFloat).cos(); }

FullyShardOptions at_level(Level level) {
  FullyShardOptions options;
  options.policy = shard::by_type<torch::nn::Linear>({.level = level});
  options.root.level = level;
  return options;
}

/// A sharded network and its optimizer on one rank of two.
struct Sharded {
  std::shared_ptr<Net> net = std::make_shared<Net>();
  ShardedModule module;
  torch::optim::SGD optimizer;
  Sharded(mesh::Mesh& mesh, const FullyShardOptions& options)
      : module(net, mesh, options), optimizer(module.parameters(), 0.1) {}

  at::Tensor loss(const at::Tensor& x = input()) {
    return module.forward([&] { return net->forward(x); });
  }
  void step() {
    optimizer.zero_grad();
    loss().backward();
    optimizer.step();
  }
};

/// Runs on two ranks at every level, and on one; ranks have the same samples.
void everywhere(const std::function<void(mesh::Mesh&, const FullyShardOptions&)>& body) {
  for (const Level level : {Level::kReplicate, Level::kZero1, Level::kZero2, Level::kZero3}) {
    for (const int64_t world : {1, 2}) {
      if (world == 1 && level != Level::kZero3) continue;
      SCOPED_TRACE(concat(plan::to_string(level), " on ", world));
      testing::run_ranks({{"shard", world}}, [&](mesh::Mesh& mesh) { body(mesh, at_level(level)); });
    }
  }
}

/// The parameters are those of a network without sharding, bit by bit (no sum is reordered).
void expect_same(Sharded& sharded, const Net& plain) {
  sharded.module.parameters_changed();
  sharded.module.with_full_parameters([&] {
    const auto expected = plain.named_parameters();
    for (const auto& entry : sharded.net->named_parameters()) {
      EXPECT_TRUE(entry.value().equal(expected[entry.key()])) << entry.key();
    }
  });
}

TEST(Works, ForwardTwiceBeforeBackward) {
  for (const bool one_backward : {true, false}) {
    Net plain;
    torch::optim::SGD optimizer(plain.parameters(), 0.1);
    const at::Tensor a = plain.forward(input()), b = plain.forward(input(5));
    if (one_backward) {
      (a + b).backward();
    } else {
      a.backward();
      b.backward();
    }
    optimizer.step();
    everywhere([&](mesh::Mesh& mesh, const FullyShardOptions& options) {
      Sharded sharded(mesh, options);
      const at::Tensor first = sharded.loss(), second = sharded.loss(input(5));
      if (one_backward) {
        (first + second).backward();
      } else {
        first.backward();
        second.backward();
      }
      sharded.optimizer.step();
      expect_same(sharded, plain);
    });
  }
}

TEST(Works, ForwardWithoutGradientsOrWithoutBackwardBetweenSteps) {
  Net plain;
  torch::optim::SGD optimizer(plain.parameters(), 0.1);
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    {
      const at::NoGradGuard no_grad;
      plain.forward(input(7));  // in training mode: it counts into the running statistics
    }
    plain.forward(input(8));
    plain.forward(input()).backward();
    optimizer.step();
  }
  everywhere([&](mesh::Mesh& mesh, const FullyShardOptions& options) {
    Sharded sharded(mesh, options);
    for (int step = 0; step < 3; ++step) {
      sharded.optimizer.zero_grad();
      {
        const at::NoGradGuard no_grad;
        sharded.loss(input(7));
      }
      sharded.loss(input(8));
      sharded.loss().backward();
      sharded.optimizer.step();
    }
    EXPECT_TRUE(sharded.net->norm->running_mean.equal(plain.norm->running_mean));
    expect_same(sharded, plain);
  });
}

TEST(Works, AnExceptionInTheBodyOfAnyStep) {
  Net plain;
  torch::optim::SGD optimizer(plain.parameters(), 0.1);
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    plain.forward(input()).backward();
    optimizer.step();
    plain.first->forward(input());  // what ran before the exception
  }
  everywhere([&](mesh::Mesh& mesh, const FullyShardOptions& options) {
    Sharded sharded(mesh, options);
    for (int step = 0; step < 2; ++step) {
      sharded.step();
      EXPECT_THROW(sharded.module.forward([&] {
        sharded.net->first->forward(input());
        throw std::runtime_error("mine");
      }),
                   std::runtime_error);
    }
    expect_same(sharded, plain);
  });
}

// Also where an optimizer leaves no trace, and without parameters_changed().
TEST(Works, EditsOfTheShardsAreSeenByTheNextForward) {
  everywhere([&](mesh::Mesh& mesh, FullyShardOptions options) {
    for (const bool bf16 : {false, true}) {
      if (bf16) options.precision.compute = options.precision.buffer = at::kBFloat16;
      Sharded sharded(mesh, options);
      const at::NoGradGuard no_grad;
      sharded.net->eval();
      const double before = sharded.loss().item<double>();
      for (at::Tensor& parameter : sharded.module.parameters()) parameter.mul_(0.5);
      const double halved = sharded.loss().item<double>();
      EXPECT_NE(halved, before);
      for (at::Tensor& parameter : sharded.module.parameters()) parameter.data().mul_(2);
      EXPECT_EQ(sharded.loss().item<double>(), before);
    }
  });
}

TEST(Works, FreezingAfterWrapping) {
  Net plain;
  torch::optim::SGD optimizer(plain.parameters(), 0.1);
  plain.first->weight.requires_grad_(false);
  plain.forward(input()).backward();
  optimizer.step();
  everywhere([&](mesh::Mesh& mesh, const FullyShardOptions& options) {
    Sharded sharded(mesh, options);
    sharded.net->first->weight.requires_grad_(false);
    sharded.step();
    expect_same(sharded, plain);
  });
}

std::string backward_error(const at::Tensor& loss) {
  return error_text([&] { loss.backward(); });
}

TEST(Refused, AStepBetweenForwardAndBackward) {
  everywhere([&](mesh::Mesh& mesh, const FullyShardOptions& options) {
    Sharded sharded(mesh, options);
    const at::Tensor loss = sharded.loss(), late = sharded.loss(), later = sharded.loss();
    loss.backward();
    sharded.optimizer.step();
    EXPECT_EQ(backward_error(late),
              "[shard.backward] parameters changed between forward and backward; call optimizer.step() after "
              "backward, and run every forward inside ShardedModule::forward()");
    sharded.loss();
    try {  // the graph stays outdated: from here on LibTorch says so itself
      later.backward();
      ADD_FAILURE() << "no error";
    } catch (const c10::Error& error) {
      EXPECT_NE(std::string(error.what()).find("modified by an inplace operation"), std::string::npos)
          << error.what();
    }
    sharded.step();
  });
}

TEST(Refused, AForwardOutsideOfForward) {
  testing::run_ranks({{"shard", 1}}, [&](mesh::Mesh& mesh) {
    FullyShardOptions options = at_level(Level::kZero3);
    options.precision.compute = options.precision.buffer = at::kBFloat16;
    Sharded sharded(mesh, options);
    sharded.step();
    EXPECT_NE(
        backward_error(sharded.net->forward(input())).find("parameters changed between forward and backward"),
        std::string::npos);
  });
}

TEST(Refused, AStepBetweenMicroBatches) {
  everywhere([&](mesh::Mesh& mesh, const FullyShardOptions& options) {
    Sharded sharded(mesh, options);
    sharded.step();
    sharded.module.set_micro_batch(0, 2);
    sharded.loss().backward();
    sharded.optimizer.step();  // with the gradients of the step before, which are still there
    sharded.module.set_micro_batch(1, 2);
    EXPECT_EQ(error_text([&] { sharded.loss(); }),
              "[shard.forward] parameters changed before micro-batch 2 of 2: expected the same parameters in "
              "all micro-batches of a step; step the optimizer after the backward of the last micro-batch, "
              "or start again with set_micro_batch(0, n)");
    sharded.module.set_micro_batch(0, 1);
    sharded.step();
  });
}

TEST(Refused, GradientsOfTheNetworksOwnParameters) {
  const std::string expected =
      "[shard.gradient] the network's own parameters have no gradients: expected gradients to be read from "
      "ShardedModule::parameters(); make the optimizer over sharded.parameters(), after wrapping; clip with "
      "sharded.clip_grad_norm()";
  everywhere([&](mesh::Mesh& mesh, const FullyShardOptions& options) {
    auto net = std::make_shared<Net>();
    torch::optim::SGD sgd(net->parameters(), 0.1);  // before wrapping
    torch::optim::AdamW adamw(net->parameters());   // decays the parameters before it reads gradients
    ShardedModule sharded(net, mesh, options);
    const auto backward = [&] { sharded.forward([&] { return net->forward(input()); }).backward(); };
    for (int repeat = 0; repeat < 2; ++repeat) {
      backward();
      EXPECT_EQ(error_text([&] { sgd.step(); }), expected);
      EXPECT_EQ(error_text([&] { torch::nn::utils::clip_grad_norm_(net->parameters(), 1.0); }), expected);
      EXPECT_EQ(error_text([&] { net->first->weight.grad().norm(); }), expected);
    }
    const at::Tensor once = sharded.parameters()[0].grad().clone();
    net->zero_grad();
    for (at::Tensor& parameter : sharded.parameters()) parameter.mutable_grad().reset();
    backward();
    EXPECT_TRUE(sharded.parameters()[0].grad().equal(once / 2)) << "nothing of it came into the gradient";
    EXPECT_EQ(error_text([&] { adamw.step(); }).rfind("[shard.", 0), 0U);
  });
}

TEST(Refused, ParametersRegisteredOrReplacedAfterWrapping) {
  everywhere([&](mesh::Mesh& mesh, const FullyShardOptions& options) {
    Sharded sharded(mesh, options);
    sharded.net->register_module("late", torch::nn::Linear(2, 2));
    EXPECT_EQ(error_text([&] { sharded.loss(); }),
              "[shard.forward] parameter late.weight was registered or replaced after wrapping; build the "
              "whole network first");
  });
  everywhere([&](mesh::Mesh& mesh, const FullyShardOptions& options) {
    Sharded sharded(mesh, options);
    sharded.net->replace_module("second", torch::nn::Linear(6, 2));
    EXPECT_NE(error_text([&] { sharded.loss(); }).find("second.weight was registered or replaced"),
              std::string::npos);
  });
}

TEST(Refused, AnotherDtypeOrMemoryAfterWrapping) {
  everywhere([&](mesh::Mesh& mesh, const FullyShardOptions& options) {
    Sharded sharded(mesh, options);
    const std::string text = error_text([&] {
      sharded.net->to(at::kDouble);
      sharded.loss(input());
    });
    const bool stays = mesh.world_size() == 1 || options.root.level == Level::kReplicate;
    EXPECT_EQ(
        text.find(
            stays ? "[shard.forward] parameter first.weight was given other memory after wrapping; convert "
                    "and load before wrapping, or use FullyShardOptions::precision and library::load_module"
                  : "[shard.touch] aten::"),
        0U)
        << text;
    if (!stays) {
      EXPECT_NE(text.find(" reads a sharded parameter outside ShardedModule::forward and backward; "),
                std::string::npos)
          << text;
    }
  });
}

TEST(Refused, ChangesOfGatheredParametersInPlace) {
  const std::string expected =
      "[shard.touch] aten::mul_ writes into a gathered copy of a sharded parameter, which is discarded; "
      "change ShardedModule::parameters(), or change parameters before wrapping";
  testing::run_ranks({{"shard", 2}}, [&](mesh::Mesh& mesh) {
    Sharded sharded(mesh, at_level(Level::kZero3));
    const auto halve = [&] {
      const at::NoGradGuard no_grad;
      sharded.net->first->weight.mul_(0.5);
    };
    EXPECT_EQ(error_text([&] { sharded.module.forward([&] { halve(); }); }), expected);
    EXPECT_EQ(error_text([&] { sharded.module.with_full_parameters(halve); }), expected);
    EXPECT_EQ(error_text([&] { sharded.module.forward([&] { sharded.net->first->weight.data().mul_(2); }); }),
              expected);
    sharded.step();
  });
  // One rank's parameters are its shards; in another dtype they are copies of them.
  testing::run_ranks({{"shard", 1}}, [&](mesh::Mesh& mesh) {
    for (const bool bf16 : {false, true}) {
      FullyShardOptions options = at_level(Level::kZero3);
      if (bf16) options.precision.compute = options.precision.buffer = at::kBFloat16;
      Sharded sharded(mesh, options);
      sharded.step();
      {
        const at::NoGradGuard no_grad;
        sharded.net->first->weight.mul_(0.5);
      }
      EXPECT_EQ(error_text([&] { sharded.loss(); }),
                bf16 ? "[shard.forward] parameter first.weight, a copy in the compute dtype, was changed in "
                       "place; change ShardedModule::parameters() instead"
                     : "no error");
    }
  });
}

TEST(Refused, UnfreezingAfterWrapping) {
  everywhere([&](mesh::Mesh& mesh, const FullyShardOptions& options) {
    auto net = std::make_shared<Net>();
    net->first->weight.requires_grad_(false);
    ShardedModule sharded(net, mesh, options);
    net->first->weight.requires_grad_(true);
    EXPECT_EQ(error_text([&] { sharded.forward([&] { return net->forward(input()); }); }),
              "[shard.forward] parameter first.weight requires a gradient, but was frozen when it was "
              "wrapped; unfreeze it before wrapping");
  });
}

TEST(Refused, ParametersThatCannotBeTrained) {
  struct Odd : torch::nn::Module {};
  const auto mesh = mesh::Mesh::pretend(0, {{"shard", 2}});
  auto complex = std::make_shared<Odd>();
  complex->register_parameter("phase", at::zeros({3}, at::kComplexFloat));
  EXPECT_EQ(error_text([&] { ShardedModule(complex, *mesh); }),
            "[shard.ShardedModule] parameter phase requires a gradient, but is ComplexFloat: expected a "
            "floating-point dtype");
  auto elsewhere = std::make_shared<Odd>();
  elsewhere->register_parameter("weight", at::zeros({3}, at::TensorOptions().device(at::kMeta)));
  EXPECT_EQ(
      error_text([&] { ShardedModule(elsewhere, *mesh); }),
      "[shard.ShardedModule] parameter weight is on meta: expected a network in host memory or on a GPU; "
      "call module->to(library::device()) before wrapping");
  auto buffer = std::make_shared<Odd>();
  buffer->register_buffer("mean", at::zeros({3}, at::TensorOptions().device(at::kMeta)));
  EXPECT_EQ(error_text([&] {
              ShardedModule(buffer, *mesh);
            }).find("[shard.ShardedModule] buffer mean is on meta: "),
            0U);
  buffer->register_parameter("weight", at::zeros({3}));
  EXPECT_EQ(
      error_text([&] { ShardedModule(buffer, *mesh); }),
      "[shard.ShardedModule] buffer mean is on meta, but parameter weight on cpu: expected a network on "
      "one device; call module->to(device) before wrapping");
}

// LibTorch's archive reads storages without calling an operation.
TEST(Refused, TorchSaveOfAReleasedNetwork) {
  const auto save = [](const std::shared_ptr<Net>& net) {
    std::ostringstream stream;
    torch::serialize::OutputArchive archive;
    net->save(archive);
    archive.save_to(stream);
    return stream.str();
  };
  Net plain;
  torch::optim::SGD optimizer(plain.parameters(), 0.1);
  plain.forward(input()).backward();
  optimizer.step();
  everywhere([&](mesh::Mesh& mesh, const FullyShardOptions& options) {
    const bool stays = mesh.world_size() == 1 || options.root.level == Level::kReplicate;
    Sharded sharded(mesh, options);
    sharded.step();
    std::string text = "no error";
    try {
      std::istringstream stream(save(sharded.net));
      auto back = std::make_shared<Net>();
      torch::serialize::InputArchive archive;
      archive.load_from(stream);
      back->load(archive);
      EXPECT_TRUE(back->second->weight.equal(plain.second->weight));
    } catch (const c10::Error& error) {
      text = error.what_without_backtrace();
    }
    if (stays) {
      EXPECT_EQ(text, "no error");
      return;
    }
    EXPECT_NE(
        text.find("[shard.released] a parameter of a sharded network is read while its memory is released "
                  "(torch::save and data_ptr do so without an operation); save with library::save_module "
                  "or ShardedModule::full_state_dict, read in the body given to forward() or "
                  "with_full_parameters()"),
        std::string::npos)
        << text;
    EXPECT_THROW(sharded.net->first->weight.data_ptr<float>(), c10::Error);
    EXPECT_NE(
        error_text([&] { sharded.net->first->bias[0].item<float>(); }).find("outside ShardedModule::forward"),
        std::string::npos);
    std::ostringstream printed;
    EXPECT_NE(error_text([&] { printed << sharded.net->first->bias; }).find("outside ShardedModule::forward"),
              std::string::npos);
    sharded.module.with_full_parameters([&] { EXPECT_FALSE(save(sharded.net).empty()); });
    sharded.step();
  });
}

TEST(Works, SetDataOnShards) {
  Net plain;
  torch::optim::SGD optimizer(plain.parameters(), 0.1);
  for (int step = 0; step < 3; ++step) {
    if (step == 1) {
      for (auto& parameter : plain.parameters()) parameter.set_data(parameter.detach() * 0.5);
    }
    optimizer.zero_grad();
    plain.forward(input()).backward();
    optimizer.step();
  }
  everywhere([&](mesh::Mesh& mesh, const FullyShardOptions& options) {
    Sharded sharded(mesh, options);
    for (int step = 0; step < 3; ++step) {
      if (step == 1) {
        for (auto& parameter : sharded.module.parameters()) parameter.set_data(parameter.detach() * 0.5);
      }
      sharded.step();
    }
    expect_same(sharded, plain);
    sharded.module.parameters()[0].set_data(at::zeros({99}));
    EXPECT_NE(error_text([&] {
                sharded.loss();
              }).find("[shard.forward] set_data() gave the shard of first.weight 99 elements: expected "),
              std::string::npos);
  });
}

TEST(Refused, NormsAndWholeVectorsOfGradientsOfShards) {
  everywhere([&](mesh::Mesh& mesh, const FullyShardOptions& options) {
    Sharded sharded(mesh, options);
    sharded.step();
    const std::string clip =
        error_text([&] { torch::nn::utils::clip_grad_norm_(sharded.module.parameters(), 1.0); });
    torch::optim::LBFGS lbfgs(sharded.module.parameters());
    const std::string step = error_text([&] {
      lbfgs.step([&] {
        lbfgs.zero_grad();
        const at::Tensor loss = sharded.loss();
        loss.backward();
        return loss;
      });
    });
    if (mesh.world_size() == 1 || options.root.level == Level::kReplicate) {
      EXPECT_EQ(clip, "no error");
      EXPECT_EQ(step, "no error");
      return;
    }
    const std::string rest =
        " reads the gradient of a shard, which is this rank's part of a tensor; clip with "
        "sharded.clip_grad_norm(), take norms with grad_norm() or tensor_norms(); LBFGS cannot work on "
        "shards; "
        "for this rank's part alone, read grad().clone()";
    EXPECT_EQ(clip, "[shard.gradient] aten::norm" + rest);
    EXPECT_EQ(step, "[shard.gradient] aten::cat" + rest);
    sharded.module.clip_grad_norm(0.1);
    EXPECT_NO_THROW(sharded.module.parameters()[0].grad().clone().norm());
    sharded.step();
  });
}

TEST(Works, HooksOfTheProgramOnParameters) {
  everywhere([&](mesh::Mesh& mesh, const FullyShardOptions& options) {
    auto net = std::make_shared<Net>();
    int before = 0, after = 0;
    net->first->weight.register_hook([&](const at::Tensor& gradient) {
      ++before;
      return gradient * 2;
    });
    ShardedModule sharded(net, mesh, options);
    net->first->weight.register_hook([&](const at::Tensor&) { ++after; });
    sharded.forward([&] { return net->forward(input()); }).backward();
    EXPECT_EQ(before, 1);
    EXPECT_EQ(after, 1);
    Net plain;
    plain.first->weight.register_hook([](const at::Tensor& gradient) { return gradient * 2; });
    plain.forward(input()).backward();
    const auto& shard = sharded.shards()[0];
    EXPECT_TRUE(
        shard.values.grad().equal(plain.first->weight.grad().flatten().slice(0, shard.begin, shard.end)));
  });
}

TEST(Refused, WrappingTwice) {
  everywhere([&](mesh::Mesh& mesh, const FullyShardOptions& options) {
    auto net = std::make_shared<Net>();
    const auto twice = [&] { ShardedModule again(net, mesh, options); };
    {
      ShardedModule sharded(net, mesh, options);
      EXPECT_EQ(
          error_text(twice),
          "[shard.ShardedModule] parameter first.weight belongs to another ShardedModule already; wrap a "
          "network once; of networks that share modules, wrap one that contains both");
      sharded.forward([&] { return net->forward(input()); }).backward();
    }
    const bool stays = mesh.world_size() == 1 || options.root.level == Level::kReplicate;
    EXPECT_EQ(
        error_text(twice),
        stays ? "no error"
              : "[shard.touch] a sharded parameter is used, but its ShardedModule was destroyed; keep the "
                "ShardedModule as long as the network is used");
  });
}

// Gradients of both kinds, over ranks with different samples.
TEST(Works, SparseGradientsOfAnEmbedding) {
  struct Words : torch::nn::Module {
    torch::nn::Embedding table{nullptr};
    explicit Words(bool sparse) {
      table =
          register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(7, 3).sparse(sparse)));
      const at::NoGradGuard no_grad;
      table->weight.copy_(at::arange(21).view({7, 3}).to(at::kFloat).sin());
    }
  };
  const auto loss = [](Words& words, int64_t rank) {
    return words.table->forward(at::arange(4) + rank).square().sum();
  };
  Words plain(false);
  torch::optim::SGD optimizer(plain.parameters(), 0.1);
  ((loss(plain, 0) + loss(plain, 1)) / 2).backward();
  optimizer.step();
  for (const Level level : {Level::kReplicate, Level::kZero1, Level::kZero2, Level::kZero3}) {
    testing::run_ranks({{"shard", 2}}, [&](mesh::Mesh& mesh) {
      auto words = std::make_shared<Words>(true);
      FullyShardOptions options;
      options.root.level = level;
      ShardedModule sharded(words, mesh, options);
      torch::optim::SGD steps(sharded.parameters(), 0.1);
      sharded.forward([&] { return loss(*words, mesh.rank()); }).backward();
      steps.step();
      sharded.with_full_parameters(
          [&] { EXPECT_TRUE(at::allclose(words->table->weight, plain.table->weight, 1e-6, 1e-6)); });
    });
  }
}

// WGAN-GP: a penalty on the gradient of the input, which backward differentiates once more.
TEST(Works, AGradientPenaltyWithAccumulation) {
  const auto loss = [](Net& net, int64_t from) {
    const at::Tensor x = input(from).requires_grad_(true);
    const at::Tensor y = torch::tanh(net.first->forward(x));
    const at::Tensor slope = torch::autograd::grad({y.sum()}, {x}, {}, true, true)[0];
    return net.second->forward(y).square().mean() + slope.square().sum();
  };
  Net plain;
  torch::optim::SGD optimizer(plain.parameters(), 0.1);
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    for (int64_t a = 0; a < 2; ++a) (loss(plain, a) / 2).backward();
    optimizer.step();
  }
  everywhere([&](mesh::Mesh& mesh, FullyShardOptions options) {
    for (const bool every : {true, false}) {
      options.reduce_every_micro_batch = every;
      Sharded sharded(mesh, options);
      for (int step = 0; step < 2; ++step) {
        sharded.optimizer.zero_grad();
        for (int64_t a = 0; a < 2; ++a) {
          sharded.module.set_micro_batch(a, 2);
          sharded.module.forward([&] { return loss(*sharded.net, a); }).backward();
        }
        sharded.optimizer.step();
      }
      EXPECT_EQ(sharded.module.step(), 2);
      sharded.module.with_full_parameters([&] {
        const auto expected = plain.named_parameters();
        for (const auto& entry : sharded.net->named_parameters())
          EXPECT_TRUE(at::allclose(entry.value(), expected[entry.key()], 1e-5, 1e-6)) << entry.key();
      });
    }
  });
}

TEST(Works, HalfParameters) {
  Net plain;
  plain.to(at::kHalf);
  torch::optim::SGD optimizer(plain.parameters(), 0.1);
  plain.forward(input()).backward();
  optimizer.step();
  everywhere([&](mesh::Mesh& mesh, const FullyShardOptions& options) {
    auto net = std::make_shared<Net>();
    net->to(at::kHalf);
    ShardedModule sharded(net, mesh, options);
    torch::optim::SGD steps(sharded.parameters(), 0.1);
    sharded.forward([&] { return net->forward(input()); }).backward();
    steps.step();
    sharded.with_full_parameters([&] {
      const auto expected = plain.named_parameters();
      for (const auto& entry : net->named_parameters())
        EXPECT_TRUE(entry.value().equal(expected[entry.key()])) << entry.key();
    });
  });
}

// As torch::nn::parallel and thread pools do.
TEST(Refused, AnotherThread) {
  testing::run_ranks({{"shard", 2}}, [&](mesh::Mesh& mesh) {
    Sharded sharded(mesh, at_level(Level::kZero3));
    std::string forward, inside, whole;
    std::thread([&] { forward = error_text([&] { sharded.loss(); }); }).join();
    std::thread([&] { whole = error_text([&] { sharded.module.with_full_parameters([] {}); }); }).join();
    sharded.module.forward(
        [&] { std::thread([&] { inside = error_text([&] { sharded.net->forward(input()); }); }).join(); });
    const std::string rest =
        " called from a different thread than the one that made the ShardedModule; give each thread its own "
        "network, Mesh and ShardedModule";
    EXPECT_EQ(forward, "[shard.forward]" + rest);
    EXPECT_EQ(whole, "[shard.with_full_parameters]" + rest);
    EXPECT_EQ(inside, "[shard.touch]" + rest);
    sharded.step();
  });
}

}  // namespace
}  // namespace tessera
