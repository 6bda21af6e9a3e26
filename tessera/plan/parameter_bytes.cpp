// SPDX-License-Identifier: Apache-2.0
#include "tessera/plan/parameter_bytes.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "tessera/plan/spans.h"

namespace tessera::plan {

Split split_of(const SizedUnit& unit, const Plan& plan) {
  Split split{shard_span(plan, unit.plan).size, replicate_span(plan, unit.plan).size};
  const auto ranks = static_cast<double>(split.shards * split.replicas);
  split.all = std::ceil(unit.size.parameters / ranks) * ranks;
  split.shard = split.all / static_cast<double>(split.shards);
  return split;
}

double states_bytes(const SizedUnit& unit, const Plan& plan, const CostInputs& inputs) {
  return (1 + inputs.kept_values) * kFloatBytes * split_of(unit, plan).shard;
}

GradientBytes gradient_bytes(const SizedUnit& unit, const Plan& plan, bool accumulates) {
  const Split split = split_of(unit, plan);
  const bool whole = accumulates && unit.plan.level == Level::kZero1 && split.shards > 1;
  return {kFloatBytes * split.shard, whole ? kFloatBytes * split.all : 0};
}

double kept_bytes(const SizedUnit& unit, const Plan& plan, double compute) {
  const bool narrow = compute < kFloatBytes;
  const bool own_slice = narrow || unit.plan.offload == Offload::kOptimizer;  // else the master weights'
  return unit.size.buffer_bytes + unit.size.buffers * (kFloatBytes + (narrow ? compute : 0)) +
         (own_slice ? compute * split_of(unit, plan).shard : 0);
}

namespace {

/// Slices of an offloaded unit on their way to its gathers and from its reductions.
double staging_bytes(const SizedUnit& unit, const Plan& plan, double compute) {
  const Split split = split_of(unit, plan);
  if (unit.plan.offload == Offload::kNone || split.shards == 1) return 0;
  const double gathers = unit.plan.offload == Offload::kAll ? 1 + static_cast<double>(plan.prefetch) : 0;
  return split.shard * (compute * gathers + kFloatBytes);
}

/// How the gradients of a unit travel (mesh::Group::reduce_scatter).
struct Reduction {
  double bytes = 0;    // of its buffers
  bool holds = false;  // what it was started with, besides, while the next unit's gradients are collected
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
  // It is held until the last piece leaves. Of three, two at once, that is when the first has come: before
  // the next unit, which has its own products to make first, collects more than a gradient.
  return {at_once * piece * (as_it_lies ? 1 : 2), as_it_lies || pieces >= 2 * inputs.pieces_at_once};
}

/// Over the shards, then over the replicas.
Reduction reduction(const SizedUnit& unit, const Plan& plan, const CostInputs& inputs) {
  const Split split = split_of(unit, plan);
  const int64_t given_bytes = unit.plan.level <= Level::kZero1 ? 4 : inputs.compute_bytes;
  Reduction most = reduction_over(split.shards, split.all, given_bytes, inputs);
  if (split.replicas > 1) {  // the rank's part of the sum is apart, in fp32
    const double part = kFloatBytes * split.shard / static_cast<double>(split.replicas);
    most.bytes = std::max(most.bytes, reduction_over(split.replicas, split.shard, 4, inputs).bytes + part);
  }
  if (plan.prefetch == 0) most.holds = false;  // the unit waits for it (ShardedModel::gradients_left)
  return most;
}

}  // namespace

double pool_bytes(const Plan& plan, const std::vector<SizedUnit>& units, const CostInputs& inputs,
                  bool trains) {
  const auto compute = static_cast<double>(inputs.compute_bytes);
  struct Count {
    int64_t kept = 0, gathered_in_turn = 0, collecting = 0;
    double collecting_bytes = 0;  // the most a number
    bool holds = false;
  };
  std::map<double, Count> by_size;
  for (const SizedUnit& unit : units) {
    const Split split = split_of(unit, plan);
    if (split.shards == 1 && unit.plan.offload != Offload::kAll) continue;
    Count& count = by_size[split.all];
    ++(unit.plan.level == Level::kZero3 ? count.gathered_in_turn : count.kept);
    const bool zero1 = unit.plan.level == Level::kZero1;  // collects what will be added up
    if (!trains || (zero1 && inputs.accumulates) || split.shards == 1) continue;
    ++count.collecting;
    count.collecting_bytes = std::max(count.collecting_bytes, zero1 ? kFloatBytes : compute);
    count.holds = reduction(unit, plan, inputs).holds;
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

double lasting_pool_bytes(const SizedUnit& unit, const Plan& plan, double compute) {
  const Split split = split_of(unit, plan);
  return split.shards > 1 && unit.plan.level < Level::kZero3 ? compute * split.all : 0;
}

namespace {

/// What products make of one unit at a time. A CPU packs a parameter's values, and in backward makes a
/// gradient where it is collected or beside it. A GPU makes all gradients of a unit before it copies them.
double made_bytes(const std::vector<SizedUnit>& units, const CostInputs& inputs, bool trains) {
  double parameter = 0, unit = 0;
  for (const SizedUnit& of : units) {
    parameter = std::max(parameter, of.size.largest);
    unit = std::max(unit, of.size.parameters);
  }
  const auto compute = static_cast<double>(inputs.compute_bytes);
  if (inputs.on_gpu) return trains ? compute * unit : 0;
  return (trains ? 2 : 1) * compute * parameter;
}

/// What the sums of a unit over its replicas travel back from and into (shard::Unit::advance_reduce_stage).
double sums_back_bytes(const SizedUnit& unit, const Plan& plan, const CostInputs& inputs) {
  const Split split = split_of(unit, plan);
  if (split.replicas == 1) return 0;
  const double part = split.shard / static_cast<double>(split.replicas);
  const bool in_place = inputs.reduce_bytes >= kFloatBytes;
  return static_cast<double>(inputs.reduce_bytes) * (part + (in_place ? 0 : split.shard));
}

/// The most that the units of a segment need together: those of one are under way at a time.
template <class Bytes>
double most_of_segment(const std::vector<SizedUnit>& units, const Bytes& bytes) {
  std::map<size_t, double> of_segment;
  double most = 0;
  for (const SizedUnit& unit : units) most = std::max(most, of_segment[unit.index] += bytes(unit));
  return most;
}

/// Buffers of the reductions that are under way at once.
double reducing_bytes(const Plan& plan, const std::vector<SizedUnit>& units, const CostInputs& inputs) {
  return most_of_segment(units, [&](const SizedUnit& unit) { return reduction(unit, plan, inputs).bytes; });
}

}  // namespace

double least_made_and_sent(const Plan& plan, const std::vector<SizedUnit>& units, const CostInputs& inputs) {
  return std::max(made_bytes(units, inputs, /*trains=*/true), reducing_bytes(plan, units, inputs));
}

namespace {

/// With the prefetch of the plan. Without `trains` nothing is sent.
double made_and_sent(const Plan& plan, const std::vector<SizedUnit>& units, const CostInputs& inputs,
                     bool trains) {
  if (trains && plan.prefetch == 0) return least_made_and_sent(plan, units, inputs);
  const double made = made_bytes(units, inputs, trains);
  if (!trains) return made;
  // Sums over replicas travel back while the next segment's reductions are under way.
  const auto sums_back = [&](const SizedUnit& unit) { return sums_back_bytes(unit, plan, inputs); };
  return made + reducing_bytes(plan, units, inputs) + most_of_segment(units, sums_back);
}

}  // namespace

double gathered_bytes(const Plan& plan, const std::vector<SizedUnit>& units, const CostInputs& inputs,
                      bool trains) {
  const auto compute = static_cast<double>(inputs.compute_bytes);
  double kept = 0, staging = 0;
  for (const SizedUnit& unit : units) {
    kept += kept_bytes(unit, plan, compute);
    staging = std::max(staging, staging_bytes(unit, plan, compute));
  }
  return kept + pool_bytes(plan, units, inputs, trains) + staging +
         made_and_sent(plan, units, inputs, trains);
}

double sums_of_pieces(const std::vector<SizedUnit>& units, const CostInputs& inputs, int64_t batch) {
  if (!inputs.tensor_pieces || batch < 2 || inputs.compute_bytes >= kFloatBytes) return 0;
  double largest = 0;
  for (const SizedUnit& unit : units) {
    if (unit.plan.is_cut()) largest = std::max(largest, unit.size.largest);
  }
  return 2 * kFloatBytes * largest;
}

}  // namespace tessera::plan
