// SPDX-License-Identifier: Apache-2.0
// Loss and whole gradients of one step of a small model in float64, under any plan, ranks as threads.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tessera/arch/model.h"
#include "tessera/models/segmented_model.h"
#include "tessera/parallel/tensor_group.h"
#include "tessera/plan/plan.h"
#include "tessera/plan/spans.h"
#include "tessera/shard/cut_parameters.h"
#include "tessera/shard/sharded_model.h"
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
  int64_t micro_batches = 1;  // each of `samples` samples
  at::ScalarType dtype = at::kDouble;
  int64_t pieces = 1;  // of a cut layer's exchanges
};

/// One rank of a step.
class StepRank {
 public:
  StepRank(const StepInput& input, const plan::Plan& plan, mesh::Mesh& mesh)
      : input_(input), mesh_(mesh), groups_(plan, mesh, input.pieces) {
    model_ = models::make_model(input.config, mesh.world(), &groups_);
    std::vector<shard::Segment> segments;
    for (const models::Segment& segment : model_->segments()) {
      const auto forward = [this, &segment](const at::Tensor& x) {
        const at::Tensor y = segment.forward(x, context_);
        context_.sums = nullptr;
        return y;
      };
      const bool keeps = plan::unit_of(plan, segment.name).recompute == plan::Recompute::kKeepSums;
      const auto repeat = [this, &segment, keeps]() -> shard::Segment::Forward {
        context_.sums = std::make_shared<parallel::KeptSums>(parallel::KeptSums{.keeps = keeps});
        return [&segment, then = context_](const at::Tensor& x) {
          then.sums->is_again = true;
          return segment.forward(x, then);
        };
      };
      segments.push_back({segment.name, placed(segment), forward, segment.buffers, repeat, segment.rows});
    }
    const at::ScalarType wide = input.dtype == at::kDouble ? at::kDouble : at::kFloat;
    sharded_ = std::make_unique<shard::ShardedModel>(std::move(segments), plan,
                                                     shard::Precision{input.dtype, wide, wide, wide}, mesh);
    initialise();
  }

  /// Adds this rank's part to the result. Ranks call it one after another.
  void add_to(StepResult& result, double loss) const {
    result.loss += loss;
    for (const auto& unit : sharded_->units()) {
      for (const shard::Shard& shard : unit->shards()) {
        at::Tensor& whole = result.gradients[shard.name];
        if (!whole.defined()) whole = at::full(shard.shape, std::nan(""), at::kDouble);
        shard::copy_to_whole(shard, shard.gradient, whole);
      }
    }
    result.square_sum += sharded_->local_gradient_square_sum();
  }

  /// This rank's part of the mean loss.
  double run() {
    double loss = 0;
    for (int64_t i = 0; i < input_.micro_batches; ++i) loss += micro_batch(i);
    return loss;
  }

 private:
  shard::UnitParameters placed(const models::Segment& segment) const {
    const parallel::TensorGroup* group = groups_.of(segment.name);
    if (group == nullptr) return segment.parameters;
    return shard::cut_parameters(segment.parameters, model_->specs(), group->size(), group->rank());
  }

  void initialise() {
    for (const auto& unit : sharded_->units()) {
      for (const shard::Shard& shard : unit->shards()) {
        const auto spec = std::ranges::find(model_->specs(), shard.name, &arch::ParameterSpec::name);
        int64_t at = 0;
        for (const Region& region : shard.regions) {
          const at::Tensor values = at::empty({region.numel()}, at::kFloat);
          // Far from its initial values, where many gradients are tiny.
          arch::ParameterSpec wide = *spec;
          wide.init = arch::Init::kNormal;
          wide.init_value = 0.2;
          models::initialise(wide, 17, region, values);
          at::Tensor(shard.master).narrow(0, at, region.numel()).copy_(values);
          at += region.numel();
        }
      }
    }
    sharded_->parameters_changed();
  }

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
    context_.training = true;
    context_.key = 99;
    context_.samples.clear();
    for (int64_t i = begin; i < end; ++i) context_.samples.push_back(static_cast<uint64_t>(index * all + i));
    context_.tensor_groups = groups_.exchange(context_.samples);
    const at::Tensor logits = sharded_->forward(images.slice(0, begin, end).to(input_.dtype));
    const at::Tensor loss =
        at::cross_entropy_loss(logits.to(at::kDouble), labels.slice(0, begin, end), {}, at::Reduction::Sum) /
        static_cast<double>(all * input_.micro_batches);
    sharded_->backward(loss, index + 1 == input_.micro_batches);
    return loss.item<double>();
  }

  const StepInput& input_;
  mesh::Mesh& mesh_;
  parallel::TensorGroups groups_;
  std::unique_ptr<models::SegmentedModel> model_;
  models::ForwardContext context_;
  std::unique_ptr<shard::ShardedModel> sharded_;
};

inline StepResult step_of(const StepInput& input, const plan::Plan& plan) {
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

/// The largest difference of a gradient, as a share of its unit's gradient norm: some gradients are zero but
/// for rounding (a key's bias).
inline double gradient_difference(const arch::ModelConfig& config, const StepResult& a, const StepResult& b) {
  std::map<std::string, double> norms;
  const auto specs = arch::parameters(config);
  for (const auto& spec : specs) {
    if (!spec.buffer) norms[spec.unit] += b.gradients.at(spec.name).square().sum().item<double>();
  }
  double most = 0;
  for (const auto& spec : specs) {
    if (spec.buffer) continue;
    const double difference =
        (a.gradients.at(spec.name) - b.gradients.at(spec.name)).abs().max().item<double>();
    // Not max(): a gradient that nobody wrote is NaN.
    if (!(difference / std::sqrt(norms[spec.unit]) <= most)) most = difference / std::sqrt(norms[spec.unit]);
  }
  return most;
}

}  // namespace tessera::testing
