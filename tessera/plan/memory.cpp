// SPDX-License-Identifier: Apache-2.0
// The memory formula. docs/memory.md derives every term; the names here are those of that page.
#include "tessera/plan/memory.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/plan/check_units.h"
#include "tessera/plan/spans.h"

namespace tessera::plan {
namespace {

constexpr double kFloatBytes = 4;

struct UnitSize {
  double parameters = 0;    // trained
  double largest = 0;       // of them, in one tensor
  double buffers = 0;       // computed once, in fp32 and in the compute dtype
  double buffer_bytes = 0;  // of what training changes besides: whole on every rank
};

std::map<std::string, UnitSize> unit_sizes(const arch::ModelConfig& config) {
  std::map<std::string, UnitSize> sizes;
  for (const auto& spec : arch::parameters(config)) {
    UnitSize& size = sizes[spec.unit];
    const auto numel = static_cast<double>(spec.numel());
    (spec.buffer ? size.buffers : size.parameters) += numel;
    if (!spec.buffer) size.largest = std::max(size.largest, numel);
  }
  for (const auto& spec : arch::buffers(config)) {
    sizes[spec.unit].buffer_bytes +=
        static_cast<double>(spec.numel()) * (spec.whole_numbers ? 8 : kFloatBytes);
  }
  return sizes;
}

/// How a unit's values lie over its data-parallel ranks.
struct Split {
  int64_t shards = 1, replicas = 1;
  double all = 0;    // values, padded to a multiple of shards x replicas
  double shard = 0;  // values that a rank owns
};

Split split_of(const UnitSize& size, const UnitPlan& unit, const Plan& plan) {
  Split split{shard_span(plan, unit).size, replicate_span(plan, unit).size};
  const auto ranks = static_cast<double>(split.shards * split.replicas);
  split.all = std::ceil(size.parameters / ranks) * ranks;
  split.shard = split.all / static_cast<double>(split.shards);
  return split;
}

/// Of a rank, while they are held: the sum's slice, and where several micro-batches are summed whole, that.
double gradient_bytes(const UnitSize& size, const UnitPlan& unit, const Plan& plan, bool accumulates) {
  const Split split = split_of(size, unit, plan);
  const bool whole = accumulates && unit.level == Level::kZero1 && split.shards > 1;
  return kFloatBytes * (split.shard + (whole ? split.all : 0));
}

/// What is held in the compute dtype from the first step to the last.
double kept_bytes(const UnitSize& size, const UnitPlan& unit, const Plan& plan, double compute) {
  const bool narrow = compute < kFloatBytes;
  const bool own_slice = narrow || unit.offload == Offload::kOptimizer;  // else that of the master weights
  return size.buffer_bytes + size.buffers * (kFloatBytes + (narrow ? compute : 0)) +
         (own_slice ? compute * split_of(size, unit, plan).shard : 0);
}

/// Slices of an offloaded unit on their way to its gathers and from its reductions.
double staging_bytes(const UnitSize& size, const UnitPlan& unit, const Plan& plan, double compute) {
  const Split split = split_of(size, unit, plan);
  if (unit.offload == Offload::kNone || split.shards == 1) return 0;
  const double gathers = unit.offload == Offload::kAll ? 1 + static_cast<double>(plan.prefetch) : 0;
  return split.shard * (compute * gathers + kFloatBytes);
}

/// How the gradients of a unit travel (mesh::Group::reduce_scatter).
struct Reduction {
  double bytes = 0;    // of its buffers
  bool holds = false;  // what it was started with, besides
};

/// Of `values` in all over `ranks`, of which the reduction is given `given_bytes` each.
Reduction reduction_over(int64_t ranks, double values, int64_t given_bytes, const CostInputs& inputs) {
  if (ranks == 1) return {};
  const double share = values / static_cast<double>(ranks);
  const double most = inputs.piece_values == 0
                          ? share
                          : static_cast<double>(std::max<int64_t>(inputs.piece_values / ranks, 1));
  const double width = std::max(std::min(most, share), 1.0), pieces = std::ceil(share / width);
  const double at_once = std::min(pieces, static_cast<double>(inputs.pieces_at_once));
  const bool as_it_lies = pieces <= 1 && given_bytes <= inputs.reduce_bytes;
  const double piece = width * static_cast<double>(ranks * std::min(given_bytes, inputs.reduce_bytes));
  return {at_once * piece * (as_it_lies ? 1 : 2), as_it_lies || pieces > at_once};
}

/// Over the shards, then over the replicas.
Reduction reduction(const UnitSize& size, const UnitPlan& unit, const Plan& plan, const CostInputs& inputs) {
  const Split split = split_of(size, unit, plan);
  const int64_t given_bytes = unit.level <= Level::kZero1 ? 4 : inputs.compute_bytes;
  Reduction most = reduction_over(split.shards, split.all, given_bytes, inputs);
  most.bytes = std::max(most.bytes, reduction_over(split.replicas, split.shard, 4, inputs).bytes);
  return most;
}

/// Of units and of gradients that are collected (with `trains`): for each size, the most in use at once.
double pool_bytes(const Plan& plan, std::map<std::string, UnitSize>& sizes, const CostInputs& inputs,
                  bool trains) {
  const auto compute = static_cast<double>(inputs.compute_bytes);
  struct Count {
    int64_t kept = 0, gathered_in_turn = 0, collecting = 0;
    double collecting_bytes = 0;  // the most a number
    bool holds = false;
  };
  std::map<double, Count> by_size;
  for (const auto& unit : plan.units) {
    const UnitSize& size = sizes[unit.name];
    const Split split = split_of(size, unit, plan);
    if (split.shards == 1 && unit.offload != Offload::kAll) continue;
    Count& count = by_size[split.all];
    ++(unit.level == Level::kZero3 ? count.gathered_in_turn : count.kept);
    const bool zero1 = unit.level == Level::kZero1;  // collects what will be added up
    if (!trains || (zero1 && inputs.accumulates) || split.shards == 1) continue;
    ++count.collecting;
    count.collecting_bytes = std::max(count.collecting_bytes, zero1 ? kFloatBytes : compute);
    count.holds = reduction(size, unit, plan, inputs).holds;
  }
  double bytes = 0;
  for (const auto& [size, count] : by_size) {
    const int64_t gathered = count.kept + std::min(count.gathered_in_turn, 1 + plan.prefetch);
    const int64_t gradients = std::min<int64_t>(count.collecting, count.holds ? 2 : 1);
    bytes += size * (compute * static_cast<double>(gathered) +
                     count.collecting_bytes * static_cast<double>(gradients));
  }
  return bytes;
}

/// `trains`: with gradients on their way.
double gathered_bytes(const Plan& plan, std::map<std::string, UnitSize>& sizes, const CostInputs& inputs,
                      bool trains) {
  const auto compute = static_cast<double>(inputs.compute_bytes);
  double kept = 0, in_reduction = 0, largest = 0, staging = 0;
  for (const auto& unit : plan.units) {
    const UnitSize& size = sizes[unit.name];
    kept += kept_bytes(size, unit, plan, compute);
    staging = std::max(staging, staging_bytes(size, unit, plan, compute));
    if (trains) in_reduction = std::max(in_reduction, reduction(size, unit, plan, inputs).bytes);
    largest = std::max(largest, size.largest);
  }
  // A parameter's values as the kernels pack them, and its gradient as autograd hands it over.
  const double one_parameter = (trains ? 2 : 1) * compute * largest;
  return kept + pool_bytes(plan, sizes, inputs, trains) + staging + in_reduction + one_parameter;
}

double image_bytes(const arch::ModelConfig& config) {
  return kFloatBytes * static_cast<double>(config.channels() * config.image_size()) *
         static_cast<double>(config.image_size());
}

/// The most that a step needs of activations and gradients at once, beyond what it needs of activations
/// alone: backward makes the gradients of one unit after another and frees what the unit kept. `kept` and
/// `gradients`: bytes of each unit.
double beyond_activations(const std::vector<double>& kept, const std::vector<double>& gradients) {
  double freed = 0, held = 0, most = 0;
  for (size_t i = kept.size(); i-- > 0;) {
    held += gradients[i];
    most = std::max(most, held - freed);
    freed += kept[i];
  }
  return most;
}

}  // namespace

Memory predict_memory(const arch::ModelConfig& config, const Plan& plan, const CostInputs& inputs,
                      int64_t batch) {
  check_units("plan.predict_memory", config, plan);
  auto sizes = unit_sizes(config);
  const arch::Activations model =
      arch::activations(config, static_cast<double>(inputs.compute_bytes), inputs.keeps_activations);
  const auto images = static_cast<double>(batch);
  Memory memory;
  memory.program = kProgramGrowth;
  memory.gathered = gathered_bytes(plan, sizes, inputs, /*trains=*/true);
  std::vector<double> kept, coming;  // bytes of each unit: activations; gradients that backward takes up
  double lasting = 0, again = 0;     // gradients that are held throughout; activations made again
  for (size_t i = 0; i < plan.units.size(); ++i) {
    const UnitPlan& unit = plan.units[i];
    const UnitSize& size = sizes[unit.name];
    memory.states += (1 + inputs.kept_values) * kFloatBytes * split_of(size, unit, plan).shard;
    const double gradients = gradient_bytes(size, unit, plan, inputs.accumulates);
    const bool lasts = inputs.accumulates || unit.offload != Offload::kNone;
    lasting += lasts ? gradients : 0;
    coming.push_back(lasts ? 0 : gradients);
    kept.push_back(images * (unit.recomputes() ? model.units[i].input : model.units[i].all));
    if (unit.recomputes()) again = std::max(again, images * model.units[i].again);
  }
  memory.gradients = lasting + beyond_activations(kept, coming);
  memory.activations = std::accumulate(kept.begin(), kept.end(), 0.0) + again +
                       images * (image_bytes(config) * (1 + inputs.batches_ahead) + model.working);
  return memory;
}

double inference_bytes(const arch::ModelConfig& config, const Plan& plan, const CostInputs& inputs,
                       int64_t batch) {
  check_units("plan.inference_bytes", config, plan);
  auto sizes = unit_sizes(config);
  const arch::Activations model = arch::activations(config, static_cast<double>(inputs.compute_bytes));
  double slices = 0, activations = 0;
  for (size_t i = 0; i < plan.units.size(); ++i) {
    slices += split_of(sizes[plan.units[i].name], plan.units[i], plan).shard;
    activations = std::max(activations, model.units[i].all);
  }
  return kFloatBytes * slices + gathered_bytes(plan, sizes, inputs, /*trains=*/false) +
         static_cast<double>(batch) * activations;
}

double saved_bytes(const arch::ModelConfig& config, const Plan& plan, double kept_values) {
  check_units("plan.saved_bytes", config, plan);
  auto sizes = unit_sizes(config);
  double numbers = 0, buffers = 0;
  for (const auto& unit : plan.units) {
    numbers += split_of(sizes[unit.name], unit, plan).shard;
    buffers += sizes[unit.name].buffer_bytes;
  }
  return (1 + kept_values) * kFloatBytes * numbers + buffers;
}

std::string parts_text(const Memory& memory) {
  return concat("states ", human_bytes(memory.states), ", gradients ", human_bytes(memory.gradients),
                ", gathered ", human_bytes(memory.gathered), ", activations ",
                human_bytes(memory.activations), ", program ", human_bytes(memory.program));
}

}  // namespace tessera::plan
