// SPDX-License-Identifier: Apache-2.0
// A pipeline over a program's own network: residual layers cut into segments, which the ranks of each stage
// hold. The first step's loss and gradients are compared with those of the whole network on one rank; then
// it learns which of four values is the largest.
//
//   tessera launch --procs 4 build/examples/pipeline 2              2 stages of 2 ranks, schedule 1f1b
//   tessera launch --procs 4 build/examples/pipeline 2 interleaved  each rank holds two segments
//   RANKS=4 ./dev example pipeline 4 gpipe                          4 stages; alone: 1 stage
#include <tessera/library/pipeline.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace library = tessera::library;

constexpr int64_t kLayers = 8, kFeatures = 4, kWidth = 32, kMicroBatches = 4;

/// x + fc2(gelu(fc1(norm(x)))), [samples, kWidth].
struct ResidualImpl : torch::nn::Module {
  ResidualImpl() {
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    fc1 = register_module("fc1", torch::nn::Linear(kWidth, 2 * kWidth));
    fc2 = register_module("fc2", torch::nn::Linear(2 * kWidth, kWidth));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return x + fc2->forward(torch::gelu(fc1->forward(norm->forward(x))));
  }
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear fc1{nullptr}, fc2{nullptr};
};
TORCH_MODULE(Residual);

/// Layers [begin, end) of the network: a linear one, residual ones, and the head. Each has a seed, so the
/// values do not depend on which rank builds it.
torch::nn::Sequential make_layers(int64_t begin, int64_t end) {
  torch::nn::Sequential layers;
  for (int64_t layer = begin; layer < end; ++layer) {
    torch::manual_seed(static_cast<uint64_t>(layer));
    if (layer == 0) {
      layers->push_back(torch::nn::Linear(kFeatures, kWidth));
    } else if (layer + 1 == kLayers) {
      layers->push_back(torch::nn::Linear(kWidth, kFeatures));
    } else {
      layers->push_back(Residual());
    }
  }
  layers->to(torch::kDouble);
  return layers;
}

/// Made-up samples for rank `place` of the first stage. The last micro-batch of a step is smaller.
library::MicroBatch batch_of(int64_t step, int64_t micro_batch, int64_t place) {
  torch::manual_seed(static_cast<uint64_t>(1000 * step + 100 * micro_batch + place));
  const int64_t samples = micro_batch + 1 == kMicroBatches ? 3 : 8;
  const torch::Tensor input = torch::randn({samples, kFeatures}, torch::kDouble);
  return {input, input.argmax(1)};
}

/// The mean over a micro-batch's samples.
torch::Tensor loss_of(const torch::Tensor& output, const torch::Tensor& target) {
  return torch::nn::functional::cross_entropy(output, target);
}

/// The whole batch of the first step through the whole network on this rank, and its gradients.
double forward_backward(torch::nn::Sequential& whole, int64_t places) {
  std::vector<torch::Tensor> inputs, targets;
  for (int64_t place = 0; place < places; ++place) {
    for (int64_t i = 0; i < kMicroBatches; ++i) {
      const library::MicroBatch batch = batch_of(0, i, place);
      inputs.push_back(batch.input);
      targets.push_back(batch.target);
    }
  }
  const torch::Tensor loss = loss_of(whole->forward(torch::cat(inputs)), torch::cat(targets));
  loss.backward();
  return loss.item<double>();
}

int run(tessera::mesh::Mesh& mesh, const library::PipelineOptions& options) {
  const int64_t segments = options.stages * options.parts, places = mesh.world_size() / options.stages;
  const auto begin_of = [&](int64_t segment) { return kLayers * segment / segments; };
  const std::vector<int64_t> held = library::segments_of(options, mesh);
  std::vector<torch::nn::Sequential> parts;
  for (const int64_t segment : held) parts.push_back(make_layers(begin_of(segment), begin_of(segment + 1)));
  library::Pipeline pipeline(mesh, options, parts);

  // The ranks of a stage have samples of their own.
  const auto step = [&](int64_t number) {
    return pipeline.step(
        kMicroBatches, [&](int64_t i) { return batch_of(number, i, mesh.rank() % places); }, loss_of);
  };
  const double loss = step(0);
  torch::nn::Sequential whole = make_layers(0, kLayers);
  const double loss_of_one = forward_backward(whole, places);
  torch::Tensor difference = torch::zeros({1}, torch::kDouble);  // summed over segments and ranks
  for (size_t part = 0; part < parts.size(); ++part) {
    for (size_t layer = 0; layer < parts[part]->size(); ++layer) {
      const auto mine = parts[part]->ptr(layer)->parameters();
      const auto theirs = whole->ptr(static_cast<size_t>(begin_of(held[part])) + layer)->parameters();
      for (size_t i = 0; i < mine.size(); ++i) difference += (mine[i].grad() - theirs[i].grad()).abs().max();
    }
  }
  mesh.world().all_reduce(difference, "difference");

  torch::optim::AdamW optimizer(pipeline.parameters(), torch::optim::AdamWOptions(0.003));
  for (int64_t number = 1; number <= 100; ++number) {
    step(number);
    pipeline.clip_grad_norm(1.0);
    optimizer.step();
  }
  const auto unseen = [&](int64_t i) { return batch_of(1000, i, mesh.rank() % places); };
  const double last = pipeline.evaluate(kMicroBatches, unseen, loss_of);
  const bool equal = std::abs(loss - loss_of_one) < 1e-12 && difference.item<double>() < 1e-11;
  if (mesh.rank() == 0) {
    std::printf(
        "%ld stages x %ld ranks, %ld segments: loss %.15f, of one rank %.15f; gradients differ by %.1e\n",
        static_cast<long>(options.stages), static_cast<long>(places), static_cast<long>(segments), loss,
        loss_of_one, difference.item<double>());
    std::printf("%s; after 100 steps: loss %.4f\n", equal ? "equal" : "NOT EQUAL", last);
  }
  return equal && last < 0.5 * loss ? 0 : 1;
}

int main(int argc, char** argv) {
  using tessera::plan::Schedule;
  const std::string schedule = argc > 2 ? argv[2] : "1f1b";
  library::ConnectOptions options;
  options.pipeline.stages = argc > 1 ? std::atol(argv[1]) : 1;
  if (schedule == "gpipe") options.pipeline.schedule = Schedule::kGpipe;
  if (schedule == "interleaved") options.pipeline.schedule = Schedule::kInterleaved;
  if (schedule == "interleaved") options.pipeline.parts = 2;
  return library::run([&](tessera::mesh::Mesh& mesh) { return run(mesh, options.pipeline); }, options);
}
