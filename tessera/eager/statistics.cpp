// SPDX-License-Identifier: Apache-2.0
#include "tessera/eager/statistics.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "tessera/models/segmented_model.h"

namespace tessera::eager {
namespace {

/// Of NamedSums::sums.
enum Sum : size_t { kCount, kSum, kSquares, kNotFinite, kSums };

}  // namespace

StepStatistics::StepStatistics(TrainState& state, bool due) : state_(state), due_(due) {
  if (!due_) return;
  state_.context.observe = [this](const std::string& name, const at::Tensor& value) {
    if (name != "tokens" && name != "features")
      add(order_in_model(state_, name), "activations", name, value);  // segments, not parts of the head
  };
}

void StepStatistics::forward_done(bool has_samples) {
  if (!due_ || !state_.context.observe) return;
  state_.context.observe = nullptr;
  if (has_samples) return;
  for (loop::NamedSums& one : sums_) {
    one.sums.assign(kSums, 0);
    one.largest = 0;
  }
}

void StepStatistics::add(int64_t order, const char* kind, const std::string& name, const at::Tensor& values) {
  const at::NoGradGuard no_grad;
  loop::NamedSums one{order, kind, name, std::vector<double>(kSums), 0};
  if (values.numel() > 0) {
    const at::Tensor finite = values.isfinite();
    // In float64 the squares of the smallest and largest values neither underflow nor overflow.
    const at::Tensor numbers = values.detach().to(at::kDouble).masked_fill(finite.logical_not(), 0);
    one.sums[kCount] = finite.sum().item<double>();
    one.sums[kNotFinite] = static_cast<double>(values.numel()) - one.sums[kCount];
    one.sums[kSum] = numbers.sum().item<double>();
    one.sums[kSquares] = numbers.square().sum().item<double>();
    one.largest = numbers.abs().max().item<double>();
  }
  sums_.push_back(std::move(one));
}

std::vector<monitor::TensorStatistics> StepStatistics::finish(double scale, loop::World& world) {
  if (!due_) return {};
  const auto segments = static_cast<int64_t>(state_.model->segments().size());
  for (const auto& unit : state_.sharded->units()) {
    if (unit->replica() > 0) continue;  // counted by the rank that holds the first copy
    for (const shard::Shard& shard : unit->shards())
      add(segments + order_in_model(state_, shard.name), "gradients", shard.name,
          shard.gradient.to(at::kFloat) / scale);
  }
  std::vector<monitor::TensorStatistics> found;
  for (const loop::NamedSums& one : loop::sum_by_name(world, sums_, "statistics")) {
    const double count = std::max(one.sums[kCount], 1.0);
    found.push_back({one.kind, one.name, one.sums[kSum] / count, std::sqrt(one.sums[kSquares] / count),
                     one.largest, std::llround(one.sums[kNotFinite])});
  }
  return found;
}

}  // namespace tessera::eager
