// SPDX-License-Identifier: Apache-2.0
// Cuts a model into the stages of a pipeline.
#include <algorithm>
#include <numeric>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/plan/plan.h"

namespace tessera::plan {
namespace {

[[noreturn]] void refuse(const char* key, const std::string& found, const std::string& expected) {
  user_error({.where = "plan.set_pipeline", .problem = concat(key, " is ", found), .expected = expected});
}

/// Ends of parts of at most `most` each, as many units in each as fit; more than `parts` of them where it is
/// too little.
std::vector<int64_t> fill(const std::vector<double>& costs, double most, int64_t parts) {
  std::vector<int64_t> begins = {0};
  const auto units = static_cast<int64_t>(costs.size());
  double sum = 0;
  for (int64_t i = 0; i < units; ++i) {
    const double cost = costs[static_cast<size_t>(i)];
    const auto left = parts - static_cast<int64_t>(begins.size());  // parts that are still to begin
    const bool is_first = i == begins.back();
    // Every part gets a unit.
    if (!is_first && (sum + cost > most || units - i <= left)) {
      begins.push_back(i);
      sum = 0;
    }
    sum += cost;
  }
  return begins;
}

void check_shape(const Plan& plan, const PipelineSettings& p) {
  if (plan.world % p.stages != 0) {
    refuse("parallel.pipeline", std::to_string(p.stages),
           concat("a divisor of the ", plan.world, plan.world == 1 ? " rank" : " ranks"));
  }
  const bool interleaved = p.schedule == Schedule::kInterleaved;
  if (interleaved != (p.virtual_stages > 1)) {
    refuse("parallel.virtual_stages",
           concat(p.virtual_stages, " with parallel.schedule \"", to_string(p.schedule), "\""),
           interleaved ? "2 or more" : "1, or parallel.schedule \"interleaved\"");
  }
  if (p.ahead > 0 && p.schedule != Schedule::k1F1B) {
    refuse("parallel.ahead", concat(p.ahead, " with parallel.schedule \"", to_string(p.schedule), "\""),
           "0, or parallel.schedule \"1f1b\"");
  }
  const int64_t parts = p.stages * p.virtual_stages;
  const auto units = static_cast<int64_t>(plan.units.size());
  if (parts > units && p.stages <= units && p.virtual_stages > 1) {
    refuse("parallel.virtual_stages", concat(p.virtual_stages, " of each of ", p.stages, " stages"),
           concat("at most ", units / p.stages, ": the model has ", units, " units"));
  }
  if (parts > units) {
    refuse("parallel.pipeline", std::to_string(p.stages),
           concat("at most ", units, ": the model has ", units, " units"));
  }
  if (interleaved && p.micro_batches % p.stages != 0) {
    refuse("parallel.micro_batches", concat(p.micro_batches, " with parallel.schedule \"interleaved\""),
           concat("a multiple of the ", p.stages, " stages"));
  }
}

/// Begins of stages with so many blocks each; the first has the stem as well, the last the head.
std::vector<int64_t> begins_of(const std::vector<int64_t>& blocks, int64_t parts, int64_t units) {
  std::vector<std::string> words;
  for (const int64_t count : blocks) words.push_back(std::to_string(count));
  const std::string text = concat("[", join(words, ", "), "]");
  if (static_cast<int64_t>(blocks.size()) != parts)
    refuse("parallel.stages", text, concat(parts, " numbers, one for each ", "(virtual) stage"));
  const int64_t sum = std::accumulate(blocks.begin(), blocks.end(), int64_t{0});
  if (sum != units - 2)
    refuse("parallel.stages", concat(text, ", ", sum, " blocks in all"), concat("the model's ", units - 2));
  std::vector<int64_t> begins = {0};
  for (size_t i = 0; i + 1 < blocks.size(); ++i)
    begins.push_back(begins.back() + blocks[i] + (i == 0 ? 1 : 0));
  for (size_t i = 1; i + 1 < blocks.size(); ++i) {
    if (blocks[i] == 0) refuse("parallel.stages", text, "a block in every stage but the first and the last");
  }
  return begins;
}

}  // namespace

std::vector<int64_t> cut_by_cost(const arch::ModelConfig& config, int64_t parts) {
  const std::vector<double> costs = arch::unit_flops(config);
  const auto units = static_cast<int64_t>(costs.size());
  TESSERA_CHECK(parts >= 1 && parts <= units, parts);
  // The largest part is some run of units: try them all.
  std::vector<double> sums;
  for (size_t begin = 0; begin < costs.size(); ++begin) {
    double sum = 0;
    for (size_t end = begin; end < costs.size(); ++end) sums.push_back(sum += costs[end]);
  }
  std::ranges::sort(sums);
  const auto least = std::ranges::lower_bound(sums, true, {}, [&](double most) {
    return static_cast<int64_t>(fill(costs, most, parts).size()) <= parts;
  });
  return fill(costs, *least, parts);
}

void set_pipeline(Plan* plan, const arch::ModelConfig& config, const PipelineSettings& settings) {
  if (settings.stages == 1) {
    if (settings.virtual_stages > 1)
      refuse("parallel.virtual_stages", std::to_string(settings.virtual_stages), "1 without a pipeline");
    if (!settings.blocks.empty()) refuse("parallel.stages", "given", "[] without a pipeline");
    if (settings.micro_batches > 0)
      refuse("parallel.micro_batches", std::to_string(settings.micro_batches), "0 without a pipeline");
    if (settings.ahead > 0) refuse("parallel.ahead", std::to_string(settings.ahead), "0 without a pipeline");
    return;
  }
  check_shape(*plan, settings);
  TESSERA_CHECK(settings.micro_batches >= 1);
  const int64_t parts = settings.stages * settings.virtual_stages;
  plan->stages = settings.stages;
  plan->virtual_stages = settings.virtual_stages;
  plan->schedule = settings.schedule;
  plan->micro_batches = settings.micro_batches;
  plan->ahead = settings.ahead;
  plan->first_unit = settings.blocks.empty()
                         ? cut_by_cost(config, parts)
                         : begins_of(settings.blocks, parts, static_cast<int64_t>(plan->units.size()));
}

}  // namespace tessera::plan
