// SPDX-License-Identifier: Apache-2.0
// Loss and whole gradients of one step of a small model, under any plan, ranks as threads.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tessera/arch/model.h"
#include "tessera/base/error.h"
#include "tessera/eager/state.h"
#include "tessera/models/segmented_model.h"
#include "tessera/plan/plan.h"
#include "tessera/plan/spans.h"
#include "tessera/shard/whole_tensor.h"
#include "tests/mesh/ranks.h"

namespace tessera::testing {

/// What a step of any layout computes.
struct StepResult {
  double loss = 0;                              // mean over the samples
  std::map<std::string, at::Tensor> gradients;  // float64, of whole tensors
  double square_sum = 0;                        // of the gradient, as the ranks sum it
  /// By rank, by kind of collective, over the groups of the plan.
  std::vector<std::map<std::string, int64_t>> bytes_sent;
};

struct StepInput {
  arch::ModelConfig config;
  int64_t samples = 8;
  int64_t micro_batches = 1;           // each of `samples` samples
  at::ScalarType dtype = at::kDouble;  // or kFloat, kBFloat16
  int64_t pieces = 1;                  // of a cut layer's exchanges
};

/// The training that such steps belong to. Batch: as many samples as fit `world` ranks, at least those of the
/// input.
inline recipe::Recipe recipe_of(const StepInput& input, int64_t world = 1) {
  const auto& config = input.config;
  const int64_t share = world * input.micro_batches;
  const int64_t batch = (input.samples * input.micro_batches + share - 1) / share * share;
  recipe::Recipe recipe = recipe::parse_recipe(
      concat("[model]\nimage_size = ", config.image_size(), "\npatch_size = ", config.image_size(),
             "\nwidth = 8\ndepth = 1\nheads = 1\nclasses = ", config.classes(),
             "\n[data]\nsource = \"fake:96\"\nworkers = 1\n[train]\nsteps = 1\nbatch = ", batch,
             "\naccumulation = ", input.micro_batches, "\n[schedule]\nwarmup_steps = 0\n"),
      "step", ".", {});
  recipe.model = config;
  recipe.parallel.pieces = input.pieces;
  recipe.precision.compute =
      input.dtype == at::kBFloat16 ? recipe::Dtype::kBFloat16 : recipe::Dtype::kFloat32;
  recipe.precision.reduce = recipe::Dtype::kFloat32;
  return recipe;
}

/// Weights far from their initial values, where many gradients are tiny.
inline void spread_weights(eager::TrainState& state) {
  for (const auto& unit : state.sharded->units()) {
    for (const shard::Shard& shard : unit->shards()) {
      const auto& specs = state.model->specs();
      arch::ParameterSpec spread = *std::ranges::find(specs, shard.name, &arch::ParameterSpec::name);
      spread.init = arch::Init::kNormal;
      spread.init_value = 0.2;
      int64_t at = 0;
      for (const Region& region : shard.regions) {
        const at::Tensor values = at::empty({region.numel()}, at::kFloat);
        models::initialise(spread, 17, region, values);
        at::Tensor(shard.master).narrow(0, at, region.numel()).copy_(values);
        at += region.numel();
      }
    }
  }
  state.sharded->parameters_changed();
}

/// One rank of a step.
class StepRank {
 public:
  StepRank(const StepInput& input, const plan::Plan& plan, mesh::Mesh& mesh) : input_(input), mesh_(mesh) {
    const recipe::Recipe recipe = recipe_of(input);
    state_ = input.dtype == at::kDouble ? eager::assemble_in_float64(recipe, plan, mesh)
                                        : eager::assemble(recipe, plan, mesh, /*with_optimizer=*/false);
    spread_weights(*state_);
  }

  /// Adds this rank's part to the result. Ranks call it one after another.
  void add_to(StepResult& result, double loss) const {
    result.loss += loss;
    for (const auto& unit : state_->sharded->units()) {
      for (const shard::Shard& shard : unit->shards()) {
        at::Tensor& whole = result.gradients[shard.name];
        if (!whole.defined()) whole = at::full(shard.shape, std::nan(""), at::kDouble);
        shard::copy_to_whole(shard, shard.gradient, whole);
      }
    }
    result.square_sum += state_->sharded->local_gradient_square_sum();
  }

  /// This rank's part of the mean loss.
  double run() {
    double loss = 0;
    for (int64_t i = 0; i < input_.micro_batches; ++i) loss += micro_batch(i);
    return loss;
  }

 private:
  double micro_batch(int64_t index) {
    const int64_t all = input_.samples, ranks = mesh_.world_size();
    const int64_t begin = all * mesh_.rank() / ranks, end = all * (mesh_.rank() + 1) / ranks;
    const auto& config = input_.config;
    at::Tensor images =
        at::empty({all, config.channels(), config.image_size(), config.image_size()}, at::kDouble);
    at::Tensor labels = at::empty({all}, at::kLong);
    for (int64_t i = 0; i < all; ++i) {  // a function of the sample alone
      const int64_t sample = index * all + i;
      images[i] = at::arange(images[i].numel(), at::kDouble)
                      .add_(static_cast<double>(100 * sample))
                      .sin_()
                      .view(images[i].sizes());
      labels[i] = sample % config.classes();
    }
    data::Batch batch;
    for (int64_t i = begin; i < end; ++i) batch.samples.push_back(static_cast<uint64_t>(index * all + i));
    eager::enter(*state_, batch, /*training=*/true, /*key=*/99);
    const at::Tensor logits = state_->sharded->forward(images.slice(0, begin, end).to(input_.dtype));
    const at::Tensor loss =
        at::cross_entropy_loss(logits.to(at::kDouble), labels.slice(0, begin, end), {}, at::Reduction::Sum) /
        static_cast<double>(all * input_.micro_batches);
    state_->sharded->backward(loss, index + 1 == input_.micro_batches);
    return loss.item<double>();
  }

  const StepInput& input_;
  mesh::Mesh& mesh_;
  std::unique_ptr<eager::TrainState> state_;
};

inline StepResult step_of(const StepInput& input, const plan::Plan& plan) {
  at::set_num_threads(1);
  StepResult result;
  result.bytes_sent.resize(static_cast<size_t>(plan.world));
  std::mutex one_at_a_time;
  run_ranks(
      {{"stage", plan.world}},
      [&](mesh::Mesh& mesh) {
        StepRank rank(input, plan, mesh);
        for (mesh::Group* group : mesh.groups()) group->barrier("before the step");
        const double loss = rank.run();
        const std::lock_guard lock(one_at_a_time);
        rank.add_to(result, loss);
        auto& sent = result.bytes_sent[static_cast<size_t>(mesh.rank())];
        for (mesh::Group* group : mesh.groups()) {
          for (const auto& [kind, traffic] : group->traffic()) sent[kind] += traffic.bytes_sent;
        }
      },
      std::chrono::milliseconds(30'000), /*shared_memory=*/true, plan::spans_of(plan));
  return result;
}

/// The largest difference of a parameter's gradient (the norm of it), as a share of its unit's gradient norm:
/// some gradients are zero but for rounding (a key's bias).
inline double gradient_difference(const arch::ModelConfig& config, const StepResult& a, const StepResult& b) {
  std::map<std::string, double> norms;
  const auto specs = arch::parameters(config);
  for (const auto& spec : specs) {
    if (!spec.buffer) norms[spec.unit] += b.gradients.at(spec.name).square().sum().item<double>();
  }
  double most = 0;
  for (const auto& spec : specs) {
    if (spec.buffer) continue;
    const at::Tensor difference = a.gradients.at(spec.name) - b.gradients.at(spec.name);
    const double share = difference.norm().item<double>() / std::sqrt(norms[spec.unit]);
    if (!(share <= most)) most = share;  // not max(): a gradient that nobody wrote is NaN
  }
  return most;
}

}  // namespace tessera::testing
