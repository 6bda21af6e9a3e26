// SPDX-License-Identifier: Apache-2.0
// Which ranks form the groups of a plan. Pure; safe from any thread.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tessera/plan/plan.h"

namespace tessera::plan {

/// A partition of the ranks into groups of `size` ranks that are `stride` apart: the group of rank r is
/// base_of(span, r), base + stride, ..., base + (size - 1) * stride. stride * size divides the ranks.
struct Span {
  int64_t stride = 1, size = 1;  // size 1: every rank by itself, and stride is 1
  /// Of messages between the layers of a pass, not of parameters and gradients. The two have groups of their
  /// own, even of the same ranks: when a gradient's next message starts depends on when the last one ended.
  bool activations = false;
  auto operator<=>(const Span&) const = default;
};

/// Position of `rank` in its group, 0 to size - 1.
int64_t position_in(const Span& span, int64_t rank);
/// Lowest rank of the group of `rank`.
int64_t base_of(const Span& span, int64_t rank);
/// Ranks of the group of `rank`, rising.
std::vector<int64_t> ranks_of(const Span& span, int64_t rank);
/// "ranks 0,2,4,6 (stride 2)"; "ranks 4,5"; more than 8 as "ranks 0,1,2,...,63".
std::string ranks_text(const Span& span, int64_t rank);

/// Ranks that hold one copy of a unit's layers together; of activations.
Span tensor_span(const Plan& plan, const UnitPlan& unit);
/// The tensor spans of all units that are cut, each once, sorted.
std::vector<Span> tensor_spans(const Plan& plan);
/// Ranks of a stage that hold the same piece of a unit's layers, for different samples.
Span data_parallel_span(const Plan& plan, const UnitPlan& unit);
/// Of a data-parallel group, the ranks over which a unit's state is split: UnitPlan::shard neighbours, or
/// all. Size 1 for a replicated unit.
Span shard_span(const Plan& plan, const UnitPlan& unit);
/// Of a data-parallel group, the ranks that hold the same state. Their number times shard_span's is
/// data_parallel_span's.
Span replicate_span(const Plan& plan, const UnitPlan& unit);

/// The ranks of a pipeline stage.
Span stage_span(const Plan& plan);

/// Spans of more than one rank over which some unit of the plan or a stage communicates (tensor, shard,
/// replicate), each once, sorted.
std::vector<Span> spans_of(const Plan& plan);

/// A way for messages from one rank to another, which come in the order in which they were sent. Stages of a
/// pipeline have one for each boundary between two virtual stages, direction and rank of a stage.
struct Link {
  int64_t boundary = 0;      // behind virtual stage `boundary`
  bool forward = true;       // activations; false: gradients, against the model's order
  int64_t from = 0, to = 0;  // ranks
  auto operator<=>(const Link&) const = default;
};

/// Of all ranks, in an order in which all of them can connect.
std::vector<Link> links_of(const Plan& plan);

/// Of a rank.
int64_t stage_of(const Plan& plan, int64_t rank);
/// The stage whose ranks have the unit, by its index in Plan::units.
int64_t stage_of_unit(const Plan& plan, size_t unit);
/// The units of a virtual stage: indices in Plan::units, the first and the one behind the last.
std::pair<size_t, size_t> units_of_virtual_stage(const Plan& plan, int64_t virtual_stage);

}  // namespace tessera::plan
