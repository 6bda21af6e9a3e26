// SPDX-License-Identifier: Apache-2.0
#include "tessera/eager/statistics.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>

namespace tessera::eager {
namespace {

constexpr int64_t kSums = 4;  // count, sum, squares, not_finite

}  // namespace

StepStatistics::StepStatistics(TrainState& state, bool due) : state_(state), due_(due) {
  if (!due_) return;
  state_.context.observe = [this](const std::string& name, const at::Tensor& value) {
    if (name != "tokens" && name != "features")
      add("activations", name, value);  // units, not parts of the head
  };
}

void StepStatistics::forward_done(bool mine) {
  if (!due_ || !state_.context.observe) return;
  state_.context.observe = nullptr;
  if (mine) return;
  for (Sums& sums : sums_) sums = {sums.kind, sums.name};
}

void StepStatistics::add(const char* kind, const std::string& name, const at::Tensor& values) {
  const at::NoGradGuard no_grad;
  Sums sums{kind, name};
  if (values.numel() > 0) {
    const at::Tensor finite = values.isfinite();
    // In double the squares of the smallest and of the largest numbers are numbers as well.
    const at::Tensor numbers = values.detach().to(at::kDouble).masked_fill(finite.logical_not(), 0);
    sums.count = finite.sum().item<double>();
    sums.not_finite = static_cast<double>(values.numel()) - sums.count;
    sums.sum = numbers.sum().item<double>();
    sums.squares = numbers.square().sum().item<double>();
    sums.largest = numbers.abs().max().item<double>();
  }
  sums_.push_back(std::move(sums));
}

std::vector<monitor::TensorStatistics> StepStatistics::finish(double scale, mesh::Mesh& mesh) {
  if (!due_) return {};
  for (const auto& unit : state_.sharded->units()) {
    for (const shard::Shard& shard : unit->shards())
      add("gradients", shard.name, shard.gradient.to(at::kFloat) / scale);
  }
  const auto rows = static_cast<int64_t>(sums_.size());
  // Sums of every rank in the first rows, each rank's largest magnitudes in one of the others.
  at::Tensor all = at::zeros({kSums + mesh.world_size(), rows}, at::kDouble);
  for (int64_t i = 0; i < rows; ++i) {
    const Sums& one = sums_[static_cast<size_t>(i)];
    const auto put = [&](int64_t row, double value) {
      all.mutable_data_ptr<double>()[row * rows + i] = value;
    };
    put(0, one.count);
    put(1, one.sum);
    put(2, one.squares);
    put(3, one.not_finite);
    put(kSums + mesh.rank(), one.largest);
  }
  mesh.world().all_reduce(all, "statistics");
  const at::Tensor largest = all.narrow(0, kSums, mesh.world_size()).amax(0);
  std::vector<monitor::TensorStatistics> found;
  for (int64_t i = 0; i < rows; ++i) {
    const Sums& one = sums_[static_cast<size_t>(i)];
    const auto sum = [&](int64_t row) { return all.const_data_ptr<double>()[row * rows + i]; };
    const double count = std::max(sum(0), 1.0);
    found.push_back({one.kind, one.name, sum(1) / count, std::sqrt(sum(2) / count),
                     largest.const_data_ptr<double>()[i], std::llround(sum(3))});
  }
  return found;
}

}  // namespace tessera::eager
