// SPDX-License-Identifier: Apache-2.0
// A network that was written without a thought of sharding: it calls its children directly, takes two inputs
// and ties two weights. It is built unit by unit, so a rank never holds more than its shards and about three
// units.
//
//   ./dev example own_model                       two local ranks
#include <sys/resource.h>
#include <tessera/library/run.h>
#include <tessera/shard/fully_shard.h>
#include <torch/torch.h>

#include <cstdio>
#include <fstream>
#include <string>

#include "arguments.h"

namespace shard = tessera::shard;

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t width)
      : norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))),
        fc1(register_module("fc1", torch::nn::Linear(width, 4 * width))),
        fc2(register_module("fc2", torch::nn::Linear(4 * width, width))) {}
  torch::Tensor forward(const torch::Tensor& x) {
    return x + fc2->forward(torch::gelu(fc1->forward(norm->forward(x))));
  }
  torch::nn::LayerNorm norm;
  torch::nn::Linear fc1, fc2;
};
TORCH_MODULE(Block);

/// Scores of every word for each place, from the words there and a vector of context. `builder` is null where
/// the network is not sharded.
struct Net : torch::nn::Module {
  Net(int64_t words, int64_t width, int64_t depth, shard::UnitBuilder* builder) {
    embed = register_module("embed", torch::nn::Embedding(words, width));
    context = register_module("context", torch::nn::Linear(8, width));
    for (int64_t i = 0; i < depth; ++i) {
      const std::string name = "block" + std::to_string(i);
      blocks.push_back(register_module(name, Block(width)));
      if (builder != nullptr) builder->shard_now(*blocks.back(), name);
    }
  }
  torch::Tensor forward(const torch::Tensor& tokens, const torch::Tensor& facts) {
    torch::Tensor x = embed->forward(tokens) + context->forward(facts).unsqueeze(1);
    for (Block& block : blocks) x = block->forward(x);
    return torch::matmul(x, embed->weight.t());  // tied: the embedding is the last layer's weight
  }
  torch::nn::Embedding embed{nullptr};
  torch::nn::Linear context{nullptr};
  std::vector<Block> blocks;
};

/// Bytes of a line of /proc/self/status: "VmHWM" the peak, "VmRSS" now.
int64_t status_bytes(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(field + ":", 0) == 0) return std::stol(line.substr(field.size() + 1)) * 1024;
  }
  return 0;
}

int run(tessera::mesh::Mesh& mesh, const Arguments& arguments) {
  const int64_t words = 64, width = arguments.whole("width"), depth = arguments.whole("depth");
  torch::manual_seed(7);
  const int64_t idle = status_bytes("VmRSS");
  shard::UnitBuilder builder(mesh);
  const auto net = std::make_shared<Net>(words, width, depth, &builder);
  shard::ShardedModule sharded(net, std::move(builder));
  const int64_t building = status_bytes("VmHWM") - idle;

  int64_t all = 0, unit = 0;
  for (const shard::UnitFacts& facts : sharded.units()) {
    all += facts.numel;
    unit = std::max(unit, facts.numel);
  }
  // Master values and their gradients, in float32, and a little for what else the program does: among it,
  // messages under way between the ranks of a host.
  const int64_t shards = 2 * 4 * all / mesh.world_size(), units = 3 * 4 * unit, slack = 24 << 20;
  if (mesh.rank() == 0) {
    std::printf("%zu units, %ld parameters; building took %ld MiB, whole they are %ld MiB\n",
                sharded.units().size(), static_cast<long>(all), static_cast<long>(building >> 20),
                static_cast<long>(4 * all >> 20));
  }
  if (building > shards + units + slack) {
    tessera::user_error(
        {.where = "example",
         .problem = tessera::concat("building took ", building >> 20, " MiB at its peak"),
         .expected = tessera::concat("at most shards + 3 units = ", (shards + units + slack) >> 20, " MiB")});
  }

  torch::optim::AdamW optimizer(sharded.parameters(), torch::optim::AdamWOptions(1e-3));
  torch::manual_seed(100 + mesh.rank());  // every rank has samples of its own
  double first = 0, last = 0;
  for (int64_t step = 0; step < arguments.whole("steps"); ++step) {
    const torch::Tensor tokens = torch::randint(words, {4, 16}), facts = torch::randn({4, 8});
    const torch::Tensor loss = sharded.forward([&] {
      const torch::Tensor scores = net->forward(tokens, facts);
      return torch::nn::functional::cross_entropy(scores.flatten(0, 1), ((tokens + 1) % words).flatten());
    });
    optimizer.zero_grad();
    loss.backward();
    sharded.clip_grad_norm(1.0);
    optimizer.step();
    last = loss.item<double>();
    if (step == 0) first = last;
  }
  if (mesh.rank() == 0) std::printf("loss %.4f -> %.4f\n", first, last);
  return last < first ? 0 : 1;
}

int main(int argc, char** argv) {
  return tessera::library::run([&](tessera::mesh::Mesh& mesh) {
    return run(mesh, Arguments(argc, argv, {{"width", "512"}, {"depth", "8"}, {"steps", "5"}}));
  });
}
