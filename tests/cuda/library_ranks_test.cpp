// SPDX-License-Identifier: Apache-2.0
// Two ranks that share a GPU, connected as a program connects them: sharding, checkpoints, tensor
// parallelism and pipelines of networks that live there.
#include <ATen/ATen.h>
#include <torch/nn.h>
#include <torch/optim.h>
#include <torch/utils.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <future>

#include "../shard/foreign_training.h"
#include "checkpoint_bytes.h"
#include "gpu.h"
#include "tessera/base/file.h"
#include "tessera/launch/launch.h"
#include "tessera/library/module_checkpoint.h"
#include "tessera/library/pipeline.h"
#include "tessera/library/run.h"
#include "tessera/library/tensor_parallel.h"
#include "tessera/shard/sync_batch_norm.h"

namespace tessera::cuda_library_ranks {
namespace {

using shard::FullyShardOptions, shard::Level, shard::Offload, shard::ShardedModule;
using testing::ForeignNet, testing::Training;

/// Of a rank, to its end.
std::string seconds_of_a_rank() { return testing::rehearses() ? "240" : "45"; }

bool is_rank() { return launch::ranks_from_environment().world > 1; }

struct Ended {
  int status = -1;
  std::string output;
};

/// The current test once more, in a process that is one of two ranks.
Ended run_again(int rank, uint16_t port, const std::string& test) {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  const std::string command =
      concat("RANK=", rank, " LOCAL_RANK=", rank, " WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 ",
             "MASTER_PORT=", port, " timeout -k 5 ", seconds_of_a_rank(), " '", program,
             "' --gtest_brief=1 --gtest_filter=", test, " 2>&1");
  Ended ended;
  FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return ended;
  std::array<char, 4096> buffer{};
  while (const size_t got = std::fread(buffer.data(), 1, buffer.size(), pipe))
    ended.output.append(buffer.data(), got);
  ended.status = ::pclose(pipe);
  return ended;
}

/// The same as both ranks. As processes: autograd has one thread for a GPU in each process, and ranks in one
/// process would wait in it for each other.
void run_again_as_two_ranks() {
  const ::testing::TestInfo& current = *::testing::UnitTest::GetInstance()->current_test_info();
  const std::string test = concat(current.test_suite_name(), ".", current.name());
  uint16_t port = 0;
  ::close(testing::listen_on_loopback(&port));
  std::vector<std::future<Ended>> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.push_back(std::async(std::launch::async, run_again, rank, port, test));
  for (auto& rank : ranks) {
    const Ended ended = rank.get();
    EXPECT_EQ(ended.status, 0) << ended.output;
  }
}

/// In a rank.
std::unique_ptr<mesh::Mesh> connect(const library::PipelineOptions& pipeline = {}) {
  library::ConnectOptions options;
  options.timeout = std::chrono::seconds(testing::rehearses() ? 120 : 20);
  options.pipeline = pipeline;
  options.device = testing::rehearses() ? library::DeviceKind::kCpu : library::DeviceKind::kCuda;
  options.share_gpu = true;
  auto mesh = library::connect(options);
  EXPECT_EQ(library::device().is_cuda(), !testing::rehearses());
  return mesh;
}

void check_levels(mesh::Mesh& mesh) {
  const testing::Result expected = testing::unsharded();
  const auto check = [&](const FullyShardOptions& options, Training training) {
    training.device = library::device();
    testing::expect_close(testing::sharded(mesh, options, training), expected, 1e-4);
  };
  for (const Level level : {Level::kReplicate, Level::kZero1, Level::kZero2, Level::kZero3}) {
    for (const bool recompute : {false, true}) {
      SCOPED_TRACE(concat(plan::to_string(level), recompute ? ", recompute" : ""));
      check(testing::every_child({.level = level}), {.accumulation = 2, .recompute = recompute});
    }
  }
  SCOPED_TRACE("offload, then local accumulation");
  check(testing::every_child({.offload = Offload::kAll}), {});
  FullyShardOptions local = testing::every_level();
  local.reduce_every_micro_batch = false;
  check(local, {.accumulation = 2});
}

void check_bf16(mesh::Mesh& mesh) {
  FullyShardOptions options = testing::every_child({});
  options.precision.compute = at::kBFloat16;
  options.precision.reduce = options.precision.buffer = at::kBFloat16;
  testing::expect_close(testing::sharded(mesh, options, {.device = library::device()}),
                        testing::unsharded(at::kBFloat16), 2e-2);
}

/// Of any dtype, and in the steps of both ranks alike.
void check_collectives(mesh::Mesh& mesh) {
  const at::TensorOptions here = at::TensorOptions().device(library::device());
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kLong, at::kByte}) {
    SCOPED_TRACE(at::toString(dtype));
    const at::Tensor mine = at::arange(5, here).add(10 * (mesh.rank() + 1)).to(dtype);
    at::Tensor sum = mine.clone(), first = mine.clone();
    mesh.world().sum(sum, "values");
    mesh.world().broadcast(first, 0, "values");
    EXPECT_TRUE(sum.equal(at::arange(5, here).mul(2).add(30).to(dtype))) << sum;
    EXPECT_TRUE(first.equal(at::arange(5, here).add(10).to(dtype))) << first;
  }
}

/// Two experts of which each rank uses one, and an unused parameter.
struct Experts : torch::nn::Module {
  std::vector<torch::nn::Linear> experts;
  at::Tensor never;
  Experts() {
    for (int64_t i = 0; i < 2; ++i)
      experts.push_back(register_module("expert" + std::to_string(i), torch::nn::Linear(3, 2)));
    never = register_parameter("never", torch::ones({5}));
    testing::set_values(*this);
  }
  at::Tensor loss_of(size_t expert, const at::Tensor& x) {
    return torch::tanh(experts[expert]->forward(x)).square().sum();
  }
};

void check_unused(mesh::Mesh& mesh) {
  const at::Tensor x = testing::normal("x", {4, 3});
  Experts plain;
  (plain.loss_of(0, x) + plain.loss_of(1, x)).backward();
  const auto net = std::make_shared<Experts>();
  net->to(library::device());
  FullyShardOptions options = testing::every_child({.level = Level::kZero2});
  options.gradients = shard::Gradients::kSum;
  ShardedModule sharded(net, mesh, options);
  sharded.forward([&] { return net->loss_of(static_cast<size_t>(mesh.rank()), x.to(library::device())); })
      .backward();
  for (const shard::ParameterShard& shard : sharded.shards()) {
    const at::Tensor gradient = plain.named_parameters()[shard.name].grad();
    ASSERT_EQ(shard.values.grad().defined(), gradient.defined()) << shard.name;
    if (!gradient.defined()) continue;
    const at::Tensor part = gradient.reshape({-1}).narrow(0, shard.begin, shard.end - shard.begin);
    EXPECT_TRUE(at::allclose(shard.values.grad().to(at::kCPU), part, 1e-4, 1e-6)) << shard.name;
  }
}

/// A norm over the samples of both ranks against LibTorch's over all of them.
void check_statistics(mesh::Mesh& mesh) {
  const at::Tensor images = testing::normal("images", {6, 3, 4, 4});
  torch::nn::BatchNorm2d plain(3);
  const at::Tensor expected = plain->forward(images).narrow(0, 3 * mesh.rank(), 3);
  const auto net = std::make_shared<torch::nn::SequentialImpl>(shard::SyncBatchNorm2d(3, &mesh.world()));
  net->to(library::device());
  ShardedModule sharded(net, mesh);
  const at::Tensor mine = images.narrow(0, 3 * mesh.rank(), 3).to(library::device());
  const at::Tensor found = sharded.forward([&] { return net->forward(mine); });
  EXPECT_TRUE(at::allclose(found.to(at::kCPU), expected, 1e-4, 1e-5));
  found.square().sum().backward();
  net->named_buffers()["0.running_mean"].add_(mesh.rank());
  sharded.average_buffers();
  EXPECT_TRUE(at::allclose(net->named_buffers()["0.running_mean"].to(at::kCPU), plain->running_mean + 0.5,
                           1e-4, 1e-5));
}

/// Saved by both ranks, loaded by them on the CPU and on the GPU.
void check_checkpoints(mesh::Mesh& mesh) {
  std::optional<TemporaryFolder> folder;
  if (mesh.rank() == 0) folder.emplace("tessera-cuda-ranks");
  const std::filesystem::path root =
      mesh.world().all_gather_text(folder ? folder->path().string() : "", "the folder").front();
  const auto pass_on = [&](at::Device device, const std::filesystem::path& from, const char* name) {
    const auto net = std::make_shared<ForeignNet>();
    testing::set_values(*net);
    net->eval();
    net->to(device);
    ShardedModule sharded(net, mesh, testing::every_child({}));
    torch::optim::AdamW optimizer(sharded.parameters(), torch::optim::AdamWOptions(0.01));
    if (!from.empty()) {
      library::load_module(from, sharded, &optimizer);
    } else {
      sharded.forward([&] { return testing::loss_of(*net, 6 * mesh.rank(), 6); }).backward();
      optimizer.step();
    }
    return library::save_module(root / name, {1, "{}"}, sharded, &optimizer);
  };
  const auto trained = pass_on(library::device(), {}, "gpu"), of_cpu = pass_on(at::kCPU, trained, "cpu"),
             again = pass_on(library::device(), of_cpu, "gpu-again");
  EXPECT_EQ(testing::tensor_bytes(of_cpu), testing::tensor_bytes(trained));
  EXPECT_EQ(testing::tensor_bytes(again), testing::tensor_bytes(trained));
  mesh.world().barrier("compared");
}

TEST(CudaLibrary, TwoRanksOfAGpuShardANetwork) {
  TESSERA_NEEDS_A_DEVICE();
  if (!is_rank()) return run_again_as_two_ranks();
  const auto mesh = connect();
  check_collectives(*mesh);
  check_levels(*mesh);
  check_bf16(*mesh);
  check_unused(*mesh);
  check_statistics(*mesh);
  check_checkpoints(*mesh);
  mesh->world().barrier("end of test");
}

/// fc2(gelu(fc1(x))) + x with the layers cut over both ranks; each has other samples.
void check_tensor_parallelism(mesh::Mesh& mesh) {
  constexpr int64_t kWidth = 4, kHidden = 6, kSamples = 3;
  const at::Tensor x = testing::normal("x", {2 * kSamples, kWidth});
  torch::manual_seed(3);
  torch::nn::Linear whole1(kWidth, kHidden), whole2(kHidden, kWidth);
  const at::Tensor expected = whole2->forward(at::gelu(whole1->forward(x))) + x;
  expected.square().sum().backward();

  library::TensorParallelGroup group(mesh, "shard");
  torch::manual_seed(3);
  library::ColumnLinear fc1(library::CutLinearOptions(kWidth, kHidden), group);
  library::RowLinear fc2(library::CutLinearOptions(kHidden, kWidth), group);
  torch::nn::Sequential both(fc1, fc2);
  both->to(library::device());
  const at::Tensor mine = x.narrow(0, kSamples * mesh.rank(), kSamples).to(library::device());
  group.begin(kSamples);
  const at::Tensor found = fc2->forward(at::gelu(fc1->forward(group.enter(mine, "mlp"))), mine);
  EXPECT_TRUE(
      at::allclose(found.to(at::kCPU), expected.narrow(0, kSamples * mesh.rank(), kSamples), 1e-4, 1e-5));
  found.square().sum().backward();
  library::sum_gradients(*both, mesh.world(), mesh.group("dp"));
  const auto expect_part = [](const at::Tensor& part, const at::Tensor& gradient, const char* name) {
    EXPECT_TRUE(at::allclose(part.grad().to(at::kCPU), gradient, 1e-4, 1e-5)) << name;
  };
  const int64_t begin = fc1->features().begin, count = fc1->features().size();
  expect_part(fc1->weight, whole1->weight.grad().narrow(0, begin, count), "columns");
  expect_part(fc2->weight, whole2->weight.grad().narrow(1, begin, count), "rows");
  expect_part(fc2->bias, whole2->bias.grad(), "whole bias");
}

/// Two stages of one layer each against the layers one after another.
void check_pipeline(mesh::Mesh& mesh, const library::PipelineOptions& options) {
  constexpr int64_t kWidth = 4, kSamples = 3, kMicroBatches = 4;
  torch::manual_seed(7);
  std::vector<torch::nn::Sequential> layers;
  for (int i = 0; i < 2; ++i) layers.emplace_back(torch::nn::Linear(kWidth, kWidth), torch::nn::Tanh());
  const at::Tensor x = testing::normal("x", {kMicroBatches * kSamples, kWidth}),
                   goal = testing::normal("goal", {kMicroBatches * kSamples, kWidth});
  const auto loss_of = [](const at::Tensor& output, const at::Tensor& target) {
    return (output - target).square().mean();
  };
  const at::Tensor expected = loss_of(layers[1]->forward(layers[0]->forward(x)), goal);
  expected.backward();

  const auto stage = static_cast<size_t>(library::segments_of(options, mesh).front());
  std::vector<at::Tensor> gradients;
  for (at::Tensor& parameter : layers[stage]->parameters()) {
    gradients.push_back(parameter.grad());
    parameter.mutable_grad() = at::Tensor();
  }
  layers[stage]->to(library::device());
  library::Pipeline pipeline(mesh, options, {layers[stage]});
  const auto load = [&](int64_t i) {
    return library::MicroBatch{x.narrow(0, i * kSamples, kSamples).to(library::device()),
                               goal.narrow(0, i * kSamples, kSamples)};
  };
  EXPECT_NEAR(pipeline.step(kMicroBatches, load, loss_of), expected.item<double>(), 1e-4);
  for (size_t i = 0; i < gradients.size(); ++i)
    EXPECT_TRUE(at::allclose(pipeline.parameters()[i].grad().to(at::kCPU), gradients[i], 1e-4, 1e-5)) << i;
  EXPECT_GT(pipeline.clip_grad_norm(1e-3), 1e-3);
}

TEST(CudaLibrary, TwoRanksOfAGpuCutLayersAndNetworks) {
  TESSERA_NEEDS_A_DEVICE();
  if (!is_rank()) return run_again_as_two_ranks();
  const library::PipelineOptions stages{.stages = 2};
  const auto mesh = connect(stages);
  check_tensor_parallelism(*mesh);
  check_pipeline(*mesh, stages);
  mesh->world().barrier("end of test");
}

}  // namespace
}  // namespace tessera::cuda_library_ranks
