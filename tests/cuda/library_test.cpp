// SPDX-License-Identifier: Apache-2.0
// A LibTorch network of one's own on a GPU, sharded by one rank, against the plain module on the CPU.
#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/nn.h>
#include <torch/optim.h>
#include <torch/utils.h>

#include "../error_text.h"
#include "../shard/foreign_training.h"
#include "checkpoint_bytes.h"
#include "gpu.h"
#include "tessera/base/file.h"
#include "tessera/eager/device.h"
#include "tessera/library/layerwise.h"
#include "tessera/library/module_checkpoint.h"

namespace tessera::cuda_library {
namespace {

namespace optim = torch::optim;
using shard::FullyShardOptions, shard::Level, shard::Offload, shard::ShardedModule;
using testing::ForeignNet, testing::Result, testing::Training;

constexpr double kFloat32Tolerance = 1e-4, kBf16Tolerance = 2e-2;

/// A training of one rank on the device.
Result train_alone(at::Device device, const FullyShardOptions& options, Training training = {}) {
  Result result;
  testing::run_ranks({{"shard", 1}}, [&](mesh::Mesh& mesh) {
    if (device.is_cuda()) testing::use_gpu(device.index());
    training.device = device;
    result = testing::sharded(mesh, options, training);
  });
  return result;
}

// With its state in the host's memory a unit of one rank comes and goes as it does among several.
TEST(CudaLibrary, TrainingFollowsThePlainModule) {
  TESSERA_NEEDS_A_DEVICE();
  const at::Device gpu = testing::use_gpu(0);
  const Result expected = testing::unsharded();
  for (const Level level : {Level::kZero3, Level::kZero1, Level::kReplicate}) {
    SCOPED_TRACE(concat("level ", plan::to_string(level)));
    testing::expect_close(train_alone(gpu, testing::every_child({.level = level})), expected,
                          kFloat32Tolerance);
  }
  const testing::UsingKernels kernels;
  for (const Offload offload : {Offload::kOptimizer, Offload::kAll}) {
    for (const bool recompute : {false, true}) {
      SCOPED_TRACE(concat("offload ", plan::to_string(offload), recompute ? ", recompute" : ""));
      const Training training{.accumulation = 2, .recompute = recompute};
      testing::expect_close(train_alone(gpu, testing::every_child({.offload = offload}), training), expected,
                            kFloat32Tolerance);
    }
  }
}

TEST(CudaLibrary, Bf16FollowsThePlainModule) {
  TESSERA_NEEDS_A_DEVICE();
  const at::Device gpu = testing::use_gpu(0);
  for (const Offload offload : {Offload::kNone, Offload::kAll}) {
    SCOPED_TRACE(concat("offload ", plan::to_string(offload)));
    FullyShardOptions options = testing::every_child({.offload = offload});
    options.precision.compute = at::kBFloat16;
    options.precision.buffer = at::kBFloat16;  // a GPU's batch norm takes one dtype
    testing::expect_close(train_alone(gpu, options), testing::unsharded(at::kBFloat16), kBf16Tolerance);
  }
}

template <typename Optimizer, typename Options>
testing::MakeOptimizer makes(const Options& options) {
  return [options](std::vector<at::Tensor> parameters) {
    return std::make_unique<Optimizer>(std::move(parameters), options);
  };
}

TEST(CudaLibrary, OptimizersFollowThePlainModule) {
  TESSERA_NEEDS_A_DEVICE();
  const at::Device gpu = testing::use_gpu(0);
  for (const testing::MakeOptimizer& make :
       {makes<optim::AdamW>(optim::AdamWOptions(0.01)), makes<optim::RMSprop>(optim::RMSpropOptions(0.01)),
        makes<optim::Adagrad>(optim::AdagradOptions(0.05))}) {
    const Training training{.optimizer = make};
    testing::expect_close(train_alone(gpu, testing::every_child({.offload = Offload::kNone}), training),
                          testing::unsharded(at::kFloat, true, make), 1e-3);
  }
}

/// A network, its shards and its optimizer.
struct Trained {
  std::shared_ptr<ForeignNet> net = std::make_shared<ForeignNet>();
  std::unique_ptr<ShardedModule> sharded;
  std::unique_ptr<optim::Optimizer> optimizer;

  Trained(mesh::Mesh& mesh, at::Device device, const FullyShardOptions& options = {}) {
    testing::set_values(*net);
    net->eval();
    net->to(device);
    sharded = std::make_unique<ShardedModule>(net, mesh, options);
    optimizer = std::make_unique<optim::AdamW>(sharded->parameters(), optim::AdamWOptions(0.01));
  }
  at::Tensor forward() {
    return sharded->forward([&] { return testing::loss_of(*net, 0, testing::kBatch); });
  }
  void steps(int count) {
    for (int step = 0; step < count; ++step) {
      optimizer->zero_grad();
      forward().backward();
      sharded->clip_grad_norm(1.0);
      optimizer->step();
    }
  }
};

/// Runs body(mesh) as one rank on the device.
void alone(at::Device device, const std::function<void(mesh::Mesh&)>& body) {
  testing::run_ranks({{"shard", 1}}, [&](mesh::Mesh& mesh) {
    if (device.is_cuda()) testing::use_gpu(device.index());
    body(mesh);
  });
}

TEST(CudaLibrary, LambAndLarsFollowTheCpu) {
  TESSERA_NEEDS_A_DEVICE();
  const at::Device gpu = testing::use_gpu(0);
  for (const bool lamb : {true, false}) {
    const auto trained = [&](at::Device device) {
      Result result;
      alone(device, [&](mesh::Mesh& mesh) {
        Trained training(mesh, device);
        if (lamb) {
          training.optimizer = std::make_unique<library::Lamb>(*training.sharded, library::LambOptions(0.01));
        } else {
          training.optimizer = std::make_unique<library::Lars>(*training.sharded, library::LarsOptions(0.5));
        }
        training.steps(3);
        training.sharded->with_full_parameters([&] { testing::put_whole(result, *training.net); });
      });
      return result;
    };
    testing::expect_close(trained(gpu), trained(at::kCPU), 1e-3);
  }
}

TEST(CudaLibrary, ShardsAndGradientsAreOnTheGpu) {
  TESSERA_NEEDS_A_DEVICE();
  const at::Device gpu = testing::use_gpu(0);
  alone(gpu, [&](mesh::Mesh& mesh) {
    Trained training(mesh, gpu);
    training.forward().backward();
    for (const auto& [name, values] : training.sharded->named_parameters()) {
      EXPECT_EQ(values.device(), gpu) << name;
      ASSERT_EQ(values.grad().defined(), name != "unused" && name != "empty") << name;
      if (!values.grad().defined()) continue;
      EXPECT_EQ(values.grad().device(), gpu) << name;
    }
  });
}

struct Dropped : torch::nn::Module {
  torch::nn::Linear first{nullptr}, second{nullptr};
  Dropped() {
    first = register_module("first", torch::nn::Linear(8, 64));
    second = register_module("second", torch::nn::Linear(64, 3));
    testing::set_values(*this);
  }
  at::Tensor forward(const at::Tensor& x, bool recomputes) {
    const auto body = [this](const at::Tensor& h) {
      return torch::dropout(torch::tanh(first->forward(h)), 0.5, is_training());
    };
    return second->forward(recomputes ? shard::recompute(body, x) : body(x)).square().sum();
  }
};

// Backward draws the masks of forward again, and leaves the generator as it was.
TEST(CudaLibrary, RecomputeDrawsTheSameDropout) {
  TESSERA_NEEDS_A_DEVICE();
  const at::Device gpu = testing::use_gpu(0);
  const auto gradients = [&](bool recomputes) {
    std::vector<at::Tensor> found;
    alone(gpu, [&](mesh::Mesh& mesh) {
      const auto net = std::make_shared<Dropped>();
      net->to(gpu);
      ShardedModule sharded(net, mesh, testing::every_child({.offload = Offload::kAll}));
      torch::manual_seed(5);
      const at::Tensor x = testing::normal("x", {16, 8}).to(gpu);
      sharded.forward([&] { return net->forward(x, recomputes); }).backward();
      for (const at::Tensor& shard : sharded.parameters()) found.push_back(shard.grad().to(at::kCPU).clone());
      found.push_back(at::rand({4}, at::TensorOptions().device(gpu)).to(at::kCPU));
    });
    return found;
  };
  const auto expected = gradients(false), found = gradients(true);
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_TRUE(at::allclose(found[i], expected[i], 1e-4, 1e-5)) << i;
}

TEST(CudaLibrary, CheckpointsFromGpuToCpuToGpuAreBitwise) {
  TESSERA_NEEDS_A_DEVICE();
  const at::Device gpu = testing::use_gpu(0);
  const TemporaryFolder folder("tessera-cuda-library");
  /// Loads `from`, makes `steps`, saves into a folder `name`.
  const auto pass_on = [&](at::Device device, const std::filesystem::path& from, int steps,
                           const char* name) {
    std::filesystem::path saved;
    alone(device, [&](mesh::Mesh& mesh) {
      Trained training(mesh, device, testing::every_child({}));
      if (!from.empty()) library::load_module(from, *training.sharded, training.optimizer.get());
      training.steps(steps);
      saved =
          library::save_module(folder.path() / name, {7, "{}"}, *training.sharded, training.optimizer.get());
    });
    return saved;
  };
  const auto trained = pass_on(gpu, {}, 3, "gpu"), of_cpu = pass_on(at::kCPU, trained, 0, "cpu"),
             again = pass_on(gpu, of_cpu, 0, "gpu-again");
  EXPECT_EQ(testing::tensor_bytes(of_cpu), testing::tensor_bytes(trained));
  EXPECT_EQ(testing::tensor_bytes(again), testing::tensor_bytes(trained));
  // The comparison sees a step.
  EXPECT_NE(testing::tensor_bytes(pass_on(gpu, of_cpu, 1, "later")), testing::tensor_bytes(trained));
}

TEST(CudaLibrary, WholeValuesLeaveAndComeBack) {
  TESSERA_NEEDS_A_DEVICE();
  const at::Device gpu = testing::use_gpu(0);
  alone(gpu, [&](mesh::Mesh& mesh) {
    Trained training(mesh, gpu, testing::every_child({.offload = Offload::kAll}));
    training.steps(1);
    shard::StateDict state = training.sharded->full_state_dict();
    const double before = training.forward().item<double>();
    for (auto& [name, tensor] : state) {
      EXPECT_TRUE(tensor.is_cpu()) << name;
      if (name == "fc2.bias") tensor.add_(1);
    }
    training.sharded->load_full_state_dict(state);
    EXPECT_NE(training.forward().item<double>(), before);
    const at::NoGradGuard no_grad;
    training.sharded->with_full_parameters([&] { training.net->fc2->bias.sub_(1); }, /*write_back=*/true);
    EXPECT_NEAR(training.forward().item<double>(), before, 1e-4 * before);
  });
}

TEST(CudaLibrary, AStepBetweenForwardAndBackwardIsRefused) {
  TESSERA_NEEDS_A_DEVICE();
  const at::Device gpu = testing::use_gpu(0);
  alone(gpu, [&](mesh::Mesh& mesh) {
    Trained training(mesh, gpu);
    training.steps(1);
    const at::Tensor loss = training.forward();
    training.optimizer->step();
    EXPECT_NE(error_text([&] { loss.backward(); }).find("parameters changed between forward and backward"),
              std::string::npos);
  });
}

/// Convolutions and running statistics.
struct Images : torch::nn::Module {
  torch::nn::Conv2d conv{nullptr};
  torch::nn::BatchNorm2d norm{nullptr};
  torch::nn::Linear head{nullptr};
  Images() {
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 3).stride(2)));
    norm = register_module("norm", torch::nn::BatchNorm2d(8));
    head = register_module("head", torch::nn::Linear(8, 4));
    testing::set_values(*this);
  }
  at::Tensor forward(const at::Tensor& images) {
    return head->forward(torch::relu(norm->forward(conv->forward(images))).mean({2, 3})).square().mean();
  }
};

// Convolutions on a GPU compute in TF32 unless they are told otherwise.
TEST(CudaLibrary, ConvolutionsAndStatisticsFollowTheCpu) {
  TESSERA_NEEDS_A_DEVICE();
  const at::Device gpu = testing::use_gpu(0);
  const auto trained = [&](at::Device device) {
    Result result;
    alone(device, [&](mesh::Mesh& mesh) {
      const auto net = std::make_shared<Images>();
      net->to(device);
      ShardedModule sharded(net, mesh, testing::every_child({.offload = Offload::kAll}));
      optim::SGD optimizer(sharded.parameters(), optim::SGDOptions(0.05));
      const at::Tensor images = testing::normal("images", {6, 3, 17, 17}).to(device);
      for (int step = 0; step < 3; ++step) {
        optimizer.zero_grad();
        const at::Tensor loss = sharded.forward([&] { return net->forward(images); });
        loss.backward();
        optimizer.step();
        result.values.push_back(loss.item<double>());
      }
      sharded.average_buffers();
      for (const auto& entry : net->named_buffers())
        result.parameters[entry.key()] = entry.value().to(at::kCPU, at::kFloat);
    });
    return result;
  };
  testing::expect_close(trained(gpu), trained(at::kCPU), 2e-2);
}

TEST(CudaLibrary, MemoryOfAModuleDoesNotGrow) {
  TESSERA_NEEDS_GPUS(1);
  const at::Device gpu = testing::use_gpu(0);
  alone(gpu, [&](mesh::Mesh& mesh) {
    Trained training(mesh, gpu, testing::every_child({.offload = Offload::kAll}));
    training.steps(3);
    eager::wait_for(gpu);
    const int64_t before = eager::device_memory(gpu)->bytes;
    training.steps(20);
    eager::wait_for(gpu);
    EXPECT_LE(eager::device_memory(gpu)->bytes, before + (1 << 16));
  });
}

/// While one lives, the thread's current stream is none that a test has used.
class FreshStream {
 public:
  explicit FreshStream(at::Device gpu)
      : streams_(at::kCUDA), before_(streams_.exchangeStream(streams_.getStreamFromGlobalPool(gpu))) {}
  ~FreshStream() { streams_.exchangeStream(before_); }
  FreshStream(const FreshStream&) = delete;
  FreshStream& operator=(const FreshStream&) = delete;

 private:
  c10::impl::VirtualGuardImpl streams_;
  c10::Stream before_;
};

TEST(CudaLibrary, AStreamOfTheProgramFollowsThePlainModule) {
  TESSERA_NEEDS_GPUS(1);
  const at::Device gpu = testing::use_gpu(0);
  Result found;
  alone(gpu, [&](mesh::Mesh& mesh) {
    const FreshStream stream(gpu);
    found = testing::sharded(mesh, testing::every_child({.offload = Offload::kAll}),
                             {.recompute = true, .device = gpu});
    // All gradients come from a recomputed piece: autograd then ends the pass on a stream of its own.
    const auto net = std::make_shared<Dropped>();
    net->eval();
    net->to(gpu);
    ShardedModule sharded(net, mesh, testing::every_child({.offload = Offload::kAll}));
    const at::Tensor x = testing::normal("x", {16, 8}).to(gpu);
    const auto body = [&](const at::Tensor& h) { return net->forward(h, false); };
    for (int step = 0; step < 3; ++step)
      sharded.forward([&] { return shard::recompute(body, x); }).backward();
    Dropped plain;
    plain.eval();
    for (int step = 0; step < 3; ++step) plain.forward(x.to(at::kCPU), false).backward();
    for (const auto& [name, shard] : sharded.named_parameters()) {
      const at::Tensor gradient = plain.named_parameters()[name].grad().reshape({-1});
      EXPECT_TRUE(at::allclose(shard.grad().to(at::kCPU), gradient, 1e-3, 1e-4)) << name;
    }
  });
  testing::expect_close(found, testing::unsharded(), kFloat32Tolerance);
}

TEST(CudaLibrary, AnotherStreamThanAtWrappingIsRefused) {
  TESSERA_NEEDS_GPUS(1);
  const at::Device gpu = testing::use_gpu(0);
  alone(gpu, [&](mesh::Mesh& mesh) {
    Trained training(mesh, gpu);
    const FreshStream stream(gpu);
    EXPECT_NE(error_text([&] { training.forward(); }).find("[shard.forward] called on a different stream"),
              std::string::npos);
  });
}

TEST(CudaLibrary, MisplacedNetworksAreRefused) {
  TESSERA_NEEDS_GPUS(1);
  const at::Device gpu = testing::use_gpu(0);
  alone(gpu, [&](mesh::Mesh& mesh) {
    const auto net = std::make_shared<ForeignNet>();
    net->fc2->to(gpu);
    EXPECT_NE(error_text([&] { ShardedModule(net, mesh); }).find("expected a network on one device"),
              std::string::npos);
  });
  // Ranks that were connected for host memory: an error, not a read of addresses of the GPU.
  testing::run_ranks({{"shard", 2}}, [&](mesh::Mesh& mesh) {
    testing::use_gpu(0);
    const auto net = std::make_shared<ForeignNet>();
    net->to(gpu);
    EXPECT_NE(
        error_text([&] { ShardedModule(net, mesh); }).find("connected to exchange tensors in host memory"),
        std::string::npos);
    at::Tensor values = at::ones({3}, at::TensorOptions().device(gpu));
    EXPECT_NE(error_text([&] {
                mesh.world().sum(values, "ones");
              }).find("connected to exchange tensors in host memory"),
              std::string::npos);
  });
}

}  // namespace
}  // namespace tessera::cuda_library
