// SPDX-License-Identifier: Apache-2.0
#include "tessera/eager/non_finite.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tessera/base/error.h"
#include "tessera/monitor/number.h"

namespace tessera::eager {
namespace {

using monitor::NumericsGuard;

/// The first parameter, in forward order, whose gradient is not finite on any rank. Collective.
std::string first_bad_number(const TrainState& state, double loss, mesh::Mesh& mesh) {
  std::vector<std::string> names;  // in forward order, the same on every rank
  size_t first = std::numeric_limits<size_t>::max();
  for (const auto& unit : state.sharded->units()) {
    for (const shard::Shard& shard : unit->shards()) {
      const bool bad = !shard.gradient.isfinite().all().item<bool>();
      if (bad && first > names.size()) first = names.size();
      names.push_back(shard.name);
    }
  }
  for (const std::string& other : mesh.world().all_gather_text(std::to_string(first), "bad number")) {
    first = std::min<size_t>(first, std::stoull(other));
  }
  if (first < names.size()) return concat("the gradient of ", names[first]);
  return std::isfinite(loss) ? "the sum of the gradient's squares" : "the loss";
}

}  // namespace

std::string judge_step(TrainState& state, double loss, double gradient_norm, mesh::Mesh& mesh) {
  using enum NumericsGuard::Verdict;
  monitor::LossScale& scale = state.loss_scale;
  const int64_t step = state.step + 1;  // as progress and metrics count
  // What is left out after a spike is not judged, by the scale neither.
  const bool in_range = state.guard.left_of_range() > 0;
  if (!in_range && scale.can_shrink() && std::isfinite(loss) && !std::isfinite(gradient_norm)) {
    const double before = scale.value();
    scale.overflowed();
    return concat("[train.loss_scale] step ", step, " is skipped: its gradients overflow fp16 at loss scale ",
                  before, " (now ", scale.value(), "; ", scale.overflows(), " in all)");
  }
  NumericsGuard& guard = state.guard;
  const std::string found = monitor::print("%g", loss);
  const auto verdict = guard.judge(loss, gradient_norm);
  switch (verdict) {
    case kUse:
      scale.used();
      return "";
    case kSkipSpike:
      return concat("[train.guard] step ", step, " is skipped: its loss ", found, " is above ",
                    guard.options().spike_factor, " times the median ", guard.median_loss(), " (",
                    guard.bad_in_a_row(), " in a row, ", guard.skipped(), " in all)");
    case kSkipRange:
      return concat("[train.guard] step ", step, " is skipped: it is one of the ", guard.options().spike_skip,
                    " after a spike (", guard.left_of_range(), " left, ", guard.skipped(), " in all)");
    case kStopSpike:
      throw NonFinite(concat(
          "[train.step] step ", step, " has loss ", found, ", after ", guard.options().spike_steps,
          " steps skipped in a row: expected at most guard.spike_factor = ", guard.options().spike_factor,
          " times the median ", guard.median_loss(), "; lower optimizer.lr, or raise guard.spike_factor"));
    case kSkipNotFinite:
    case kStopNotFinite:
      break;
  }
  const std::string which = first_bad_number(state, loss, mesh);
  if (verdict == kSkipNotFinite) {
    return concat("[train.guard] step ", step, " is skipped: ", which, " is not finite (loss ", found, "; ",
                  guard.bad_in_a_row(), " in a row, ", guard.skipped(), " in all)");
  }
  const int64_t before = guard.bad_in_a_row() - 1;
  throw NonFinite(concat("[train.step] ", which, " is not finite in step ", step, " (loss ", found,
                         before > 0 ? concat(", after ", before, " skipped in a row") : "",
                         "); lower optimizer.lr, or raise schedule.warmup_steps",
                         resolve_dtype(state.recipe.precision.compute, state.input->device()) == at::kFloat
                             ? ""
                             : ", or set precision.compute = \"fp32\""));
}

BuffersBefore::BuffersBefore(const TrainState& state) {
  for (const auto& [name, buffer] : state.sharded->buffers()) values_.push_back(buffer.clone());
}

void BuffersBefore::put_back(TrainState& state) const {
  const at::NoGradGuard no_grad;
  const auto buffers = state.sharded->buffers();
  for (size_t i = 0; i < values_.size(); ++i) {
    at::Tensor(buffers[i].second).copy_(values_[i]);
  }
}

}  // namespace tessera::eager
