// SPDX-License-Identifier: Apache-2.0
// MNIST with a small convolutional network, every layer a unit of ZeRO-3, recomputed in backward; then the
// sharded checkpoint becomes one file, and that file is evaluated.
//
//   ./dev example mnist --data idx:DIR            two local ranks, two epochs
//   tessera launch --procs 2 build/examples/mnist --data idx:DIR
#include <tessera/checkpoint/stored_checkpoint.h>
#include <tessera/checkpoint/tools.h>
#include <tessera/library/module_checkpoint.h>
#include <tessera/library/run.h>
#include <tessera/shard/recompute.h>

#include <cstdio>
#include <filesystem>

#include "arguments.h"
#include "classification.h"

namespace data = tessera::data;
namespace shard = tessera::shard;

/// 5 x 5 convolutions of 10 and 20 channels with batch normalisation, then 320-50-10.
struct Net : torch::nn::Module {
  Net() {
    conv1 = register_module("conv1", torch::nn::Conv2d(1, 10, 5));
    bn1 = register_module("bn1", torch::nn::BatchNorm2d(10));
    conv2 = register_module("conv2", torch::nn::Conv2d(10, 20, 5));
    bn2 = register_module("bn2", torch::nn::BatchNorm2d(20));
    fc1 = register_module("fc1", torch::nn::Linear(320, 50));
    fc2 = register_module("fc2", torch::nn::Linear(50, 10));
  }

  torch::Tensor forward(torch::Tensor x) {
    x = run(conv1, x);
    x = run(bn1, torch::relu(torch::max_pool2d(x, 2)));
    x = run(conv2, x);
    x = run(bn2, torch::relu(torch::max_pool2d(x, 2)));
    x = torch::relu(run(fc1, x.flatten(1)));
    return torch::log_softmax(run(fc2, x), 1);
  }

  /// A layer that keeps only its input for backward and runs again there.
  template <typename Layer>
  torch::Tensor run(Layer& layer, const torch::Tensor& x) {
    if (!is_training()) return layer->forward(x);
    return shard::recompute([&layer](const torch::Tensor& input) { return layer->forward(input); }, x);
  }

  torch::nn::Conv2d conv1{nullptr}, conv2{nullptr};
  torch::nn::BatchNorm2d bn1{nullptr}, bn2{nullptr};
  torch::nn::Linear fc1{nullptr}, fc2{nullptr};
};

data::TransformOptions transform() {
  data::TransformOptions options;
  options.image_size = 28;
  options.channels = 1;
  options.train_crop = data::TrainCrop::kNone;
  options.eval_crop = data::EvalCrop::kSquash;
  options.flip = false;  // a mirrored digit is another sign
  options.mean = {0.1307F};
  options.std = {0.3081F};
  return options;
}

/// SGD as long as `epochs`; the remainder of an epoch is dropped.
void train(shard::ShardedModule& sharded, Net& net, torch::optim::Optimizer& optimizer,
           const data::Source& source, const Arguments& arguments) {
  const tessera::mesh::Mesh& mesh = sharded.mesh();
  data::LoaderOptions options;
  options.rank = mesh.rank();
  options.world = mesh.world_size();
  options.batch = arguments.whole("batch") * options.world;
  options.seed = static_cast<uint64_t>(arguments.whole("seed"));
  const int64_t steps = data::steps_per_epoch(source.size(), options.batch);
  data::TrainLoader loader(source, transform(), options, 0);
  for (int64_t step = 0; step < steps * arguments.whole("epochs"); ++step) {
    const data::Batch batch = loader.next();
    const torch::Tensor images = images_of(batch).to(tessera::library::device()),
                        labels = torch::tensor(batch.labels).to(images.device());
    const torch::Tensor loss = sharded.forward([&] { return torch::nll_loss(net.forward(images), labels); });
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    if (mesh.rank() == 0 && step % 200 == 0) {
      std::printf("step %ld/%ld  loss %.4f\n", static_cast<long>(step + 1),
                  static_cast<long>(steps * arguments.whole("epochs")), loss.item<double>());
      std::fflush(stdout);
    }
  }
}

int run(tessera::mesh::Mesh& mesh, const Arguments& arguments) {
  torch::manual_seed(arguments.whole("seed"));
  const auto training = data::open_source(arguments.text("data"), "train", {});
  const auto test = data::open_source(arguments.text("data"), "test", {});
  const auto net = std::make_shared<Net>();
  net->to(tessera::library::device());
  shard::FullyShardOptions options;
  options.policy = shard::by_type<torch::nn::Conv2d, torch::nn::Linear>();  // the norms stay with the root
  shard::ShardedModule sharded(net, mesh, options);
  const double lr = arguments.number("lr") * static_cast<double>(mesh.world_size());
  torch::optim::SGD optimizer(sharded.parameters(), torch::optim::SGDOptions(lr).momentum(0.5));
  train(sharded, *net, optimizer, *training, arguments);

  sharded.average_buffers();  // running statistics of the norms are each rank's own so far
  net->eval();
  const auto predict = [&](const torch::Tensor& x) {
    return sharded.forward([&] { return net->forward(x.to(tessera::library::device())); });
  };
  const double val = top1(predict, *test, transform(), mesh, 500);
  const auto checkpoint = tessera::library::save_module(arguments.text("folder"), {}, sharded, &optimizer);

  // One file of the shards, and a network of its own that knows nothing of sharding.
  const std::filesystem::path file = checkpoint / "consolidated.safetensors";
  if (mesh.rank() == 0) {
    tessera::checkpoint::StoredCheckpoint stored{tessera::checkpoint::Folders(checkpoint)};
    tessera::checkpoint::consolidate(stored, file, {});
  }
  mesh.world().barrier("consolidated");
  Net single;
  tessera::library::load_safetensors(file, single);
  single.eval();
  const double consolidated =
      top1([&](const torch::Tensor& x) { return single.forward(x); }, *test, transform(), mesh, 500);
  if (mesh.rank() == 0) std::printf("val_top1=%.2f consolidated_top1=%.2f\n", val, consolidated);
  return 0;
}

int main(int argc, char** argv) {
  const auto body = [&](tessera::mesh::Mesh& mesh) {
    const Arguments arguments(argc, argv,
                              {{"data", "idx:data/mnist"},
                               {"epochs", "2"},
                               {"batch", "16"},  // per rank
                               {"lr", "0.01"},   // times the ranks
                               {"seed", "1"},    // of weights and order
                               {"folder", "runs/example-mnist"}});
    return run(mesh, arguments);
  };
  return tessera::library::run(body, {.device = tessera::library::DeviceKind::kAuto});
}
