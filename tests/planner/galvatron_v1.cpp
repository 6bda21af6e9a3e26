// SPDX-License-Identifier: Apache-2.0
#include "galvatron_v1.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/planner/front.h"

namespace tessera::planner::galvatron_v1 {
namespace {

// vit/search_layerwise_hp_8gpus.py, hidden size 1280. Activations of one sample by tensor degree.
constexpr double kParameterMb = 76.98;
const std::map<int64_t, double> kActivationMb = {{1, 20.27}, {2, 12.12}, {4, 7.97}, {8, 5.93}};
constexpr double kOtherStatesMb = 45.56;
constexpr double kOtherActivationMb = 13;  // of one sample
constexpr double kTokens = 196, kWidth = 1280;
// vit/configs/forward_profiling_config.json: milliseconds of a layer's forward pass for one sample.
constexpr double kForwardMs = 0.750;
// utils/cost_model.py: memory of the CUDA context, gathered parameters of SDP relative to all, copies of the
// parameters (weights, gradients, two moments), and the factor from predicted ms to seconds.
constexpr double kContextMb = 1024, kGathered = 0.025, kCopies = 4, kSecondsPerMs = 0.0011;
constexpr double kBackwardOverForward = 2;
constexpr double kAllReducesOfLayer = 4;  // of its activations, forward and backward
constexpr double kBytesPerMb = 1024. * 1024;
// env_configs/overlap_coefficient.json: how much slower computing and communicating are at the same time.
constexpr double kSlowdown = 1.30;

struct Group {
  int64_t stages, size;
  bool adjacent;
  auto operator<=>(const Group&) const = default;
};

/// env_configs/allreduce_bandwidth_8_gpus.json: ms for each MB that a GPU sends.
double ms_per_mb(const Group& group) {
  static const std::map<Group, double> measured = {
      {{1, 8, true}, 0.21530878},   {{1, 4, false}, 0.220138889}, {{1, 4, true}, 0.226519097},
      {{1, 2, false}, 0.271614583}, {{1, 2, true}, 0.277994792},  {{2, 4, true}, 0.230750868},
      {{2, 2, false}, 0.224153646}, {{2, 2, true}, 0.275195313},  {{4, 2, true}, 0.264908854}};
  return group.size == 1 ? 0 : measured.at(group);
}

bool has_both(const Strategy& strategy) { return strategy.tensor > 1 && strategy.data > 1; }

double tensor_ms_per_mb(const Strategy& strategy) {
  return ms_per_mb({strategy.stages, strategy.tensor, !has_both(strategy) || strategy.adjacent});
}

double data_ms_per_mb(const Strategy& strategy) {
  return ms_per_mb({strategy.stages, strategy.data, !has_both(strategy) || !strategy.adjacent});
}

/// MB that each of `ranks` ranks sends in an all-reduce of `megabytes`.
double all_reduce_mb(int64_t ranks, double megabytes) {
  const auto n = static_cast<double>(ranks);
  return 2 * (n - 1) / n * megabytes;
}

/// The end of the backward pass and of the gradient messages that run beside it.
struct Overlap {
  double both = 0;      // ms in which both are under way, each slowed down
  double backward = 0;  // ms of backward alone afterwards
  double messages = 0;  // ms of messages alone afterwards
};

Overlap overlap(double backward_ms, double messages_ms) {
  const double both = kSlowdown * std::min(backward_ms, messages_ms);
  return {both, backward_ms - both / kSlowdown, messages_ms - both / kSlowdown};
}

/// Micro-batches of a step: fixed by vit/search_layerwise_hp_8gpus.py, not searched.
double micro_batches(double local_batch) { return local_batch == 8 ? 1 : 2; }

double samples_per_rank(const Strategy& strategy, int64_t batch) {
  return static_cast<double>(batch) / static_cast<double>(strategy.data);
}

double ms_of_layer(const Strategy& strategy, int64_t batch) {
  const double samples = samples_per_rank(strategy, batch);
  const auto stages = static_cast<double>(strategy.stages), tensor = static_cast<double>(strategy.tensor);
  const double forward = kForwardMs * samples / tensor, backward = kBackwardOverForward * forward;
  const double gradients = data_ms_per_mb(strategy) * all_reduce_mb(strategy.data, kParameterMb / tensor);
  const double activation_mb = samples * kTokens * kWidth * sizeof(float) / kBytesPerMb;
  const double tensor_ms =
      tensor_ms_per_mb(strategy) * kAllReducesOfLayer * all_reduce_mb(strategy.tensor, activation_mb);
  // Tensor parallelism's messages are never hidden. With two data-parallel ranks, only half of the
  // backward pass hides gradients.
  const double hiding = strategy.tensor > 1 && strategy.data == 2 ? 0.5 : 1;
  const Overlap end = overlap(hiding * backward, gradients);
  // Without tensor parallelism all stages wait for left-over messages of DP at the same time.
  const double waits = strategy.tensor == 1 && !strategy.sharded ? end.messages / stages : end.messages;
  const double computing = forward + backward + tensor_ms;
  const double exposed = end.both + end.backward + waits - hiding * backward;
  const double m = micro_batches(samples);
  const double gather = strategy.sharded ? gradients / 2 : 0;
  return computing * (stages + m - 1) / (stages * m) + exposed + gather;
}

/// The work of search() for one number of stages and one batch.
Optimum assigned(const Problem& problem, const std::vector<Strategy>& candidates, int64_t batch) {
  const auto units = [&](double megabytes) {
    return static_cast<int64_t>(std::ceil(megabytes * static_cast<double>(problem.units_per_megabyte)));
  };
  std::vector<Cost> costs;
  for (const Strategy& strategy : candidates)
    costs.push_back({units(layer_megabytes(strategy, batch)), layer_seconds(strategy, batch)});
  const int64_t stages = candidates.front().stages;
  // The version counts what the first of the candidates needs besides the layers.
  const int64_t budget = problem.gigabytes * 1024 * problem.units_per_megabyte -
                         units(other_megabytes(candidates.front(), batch));
  const Front front = front_of(problem.layers / stages, costs, {.memory_limit = budget});
  const std::optional<size_t> best = front.best(budget);
  if (!best) return {};
  std::vector<std::string> parts;
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (const int32_t count = front.counts(*best)[i])
      parts.push_back(concat(count, "x", to_string(candidates[i])));
  }
  const double seconds = front.points()[*best].time * static_cast<double>(stages);
  return {static_cast<double>(batch) / seconds, batch, join(parts, " + ")};
}

}  // namespace

std::string to_string(const Strategy& strategy) {
  const std::string_view tensor_mark = has_both(strategy) && strategy.adjacent ? "*" : "";
  const std::string_view data_mark = has_both(strategy) && !strategy.adjacent ? "*" : "";
  return concat(strategy.stages, "-", strategy.tensor, tensor_mark, "-", strategy.data,
                strategy.sharded ? "f" : "", data_mark);
}

std::vector<Strategy> all_strategies() {
  std::vector<Strategy> all;
  for (int64_t stages = 1; stages <= 8; stages *= 2) {
    for (int64_t tensor = 1; tensor * stages <= 8; tensor *= 2) {
      const Strategy strategy{stages, tensor, 8 / stages / tensor};
      for (const bool sharded : {false, true}) {
        if (sharded && strategy.data == 1) continue;
        for (const bool adjacent : {true, false}) {
          if (!adjacent && !has_both(strategy)) continue;
          all.push_back({stages, tensor, strategy.data, adjacent, sharded});
        }
      }
    }
  }
  return all;
}

std::vector<Strategy> dp_tp_strategies() {
  std::vector<Strategy> some = all_strategies();
  std::erase_if(some, [](const Strategy& strategy) { return strategy.stages > 1 || strategy.sharded; });
  return some;
}

std::vector<Strategy> dp_pp_strategies() {
  std::vector<Strategy> some = all_strategies();
  std::erase_if(some, [](const Strategy& strategy) { return strategy.tensor > 1 || strategy.sharded; });
  return some;
}

double layer_megabytes(const Strategy& strategy, int64_t batch) {
  const double share = strategy.sharded ? 1 / static_cast<double>(strategy.data) + kGathered : 1;
  const double states = kCopies * kParameterMb / static_cast<double>(strategy.tensor) * share;
  return states + kActivationMb.at(strategy.tensor) * samples_per_rank(strategy, batch);
}

double other_megabytes(const Strategy& strategy, int64_t batch) {
  const double samples = samples_per_rank(strategy, batch) / static_cast<double>(strategy.tensor);
  return kOtherStatesMb + kOtherActivationMb * samples + kContextMb;
}

double layer_seconds(const Strategy& strategy, int64_t batch) {
  return ms_of_layer(strategy, batch) * kSecondsPerMs;
}

Optimum search(const Problem& problem) {
  std::map<int64_t, std::vector<Strategy>> by_stages;
  for (const Strategy& strategy : problem.candidates) by_stages[strategy.stages].push_back(strategy);
  Optimum best;
  for (int64_t batch = 8;; batch += 8) {
    bool fits = false;
    for (const auto& [stages, candidates] : by_stages) {
      const Optimum optimum = assigned(problem, candidates, batch);
      fits = fits || optimum.throughput > 0;
      if (optimum.throughput > best.throughput) best = optimum;
    }
    if (!fits) return best;
  }
}

}  // namespace tessera::planner::galvatron_v1
