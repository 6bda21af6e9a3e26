// SPDX-License-Identifier: Apache-2.0
// Every collective and message of a training step, by rank, in the order in which the executor starts it and
// waits for it; and the proof that no rank waits for ever. Pure; safe from any thread.
//
// Note [What can wait for what]: starting a collective or sending a message never waits, so only waits can
// lock. Ranks of a group meet by counting: the k-th gather (or exchange) that each of them starts is one
// collective. So a step comes to its end with the right values if (1) all members of a group start the same
// collectives in the same order, and (2) no waits wait for each other. All ranks of a stage run one program,
// which decides by plan and schedule alone what it starts and where it waits, so (1) holds for every plan;
// check_events() proves both for the lists at hand.
//
// What the order of a group guarantees: gathers (all_gather, gather_rows, all_reduce) and exchanges
// (reduce_scatter, sum_rows) of a group start each in the order of these lists. A large reduction travels in
// pieces (mesh/pieces.h), whose later ones start when earlier ones have ended; before the next collective of
// the group starts, all of them have. Nothing is guaranteed between different groups, whose pieces interleave
// as messages come.
//
// Left out: rounds that say which samples ranks hold where a rank has more than 64 (once); the second message
// of exchanges between ranks of unequal numbers of samples, which start at the same places; statistics, sums
// of optimizers that look at whole tensors, and what a broken sample or a bad number needs, which follow the
// step's sum over all ranks. A unit that is not frozen as a whole, with parameters that are, is reduced at
// the end of its pass.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tessera/plan/plan.h"
#include "tessera/plan/schedule.h"
#include "tessera/plan/spans.h"

namespace tessera::plan {

enum class CollectiveKind { kAllGather, kGatherRows, kAllReduce, kReduceScatter, kSumRows, kSend, kReceive };

/// "all_gather", ..., as errors and traces name it.
std::string to_string(CollectiveKind kind);

/// A collective of a group, or one end of a message.
struct Collective {
  CollectiveKind kind = CollectiveKind::kAllGather;
  std::string what;  // the unit, layer or message, as errors name it: "blocks.3", "note of micro-batch 1"
  Span span = {};    // the group; of a message {}
  Link link = {};    // of a message
  bool is_message() const { return kind == CollectiveKind::kSend || kind == CollectiveKind::kReceive; }
  bool operator==(const Collective&) const = default;
};

/// "all_gather blocks.3 over ranks 0,1"; "receive note of micro-batch 1 from rank 0". `rank`: of the event.
std::string to_string(const Collective& collective, int64_t rank);

struct StepEvent {
  static constexpr int64_t kStarts = -1;
  Collective of;
  int64_t waits_for = kStarts;  // index of the event of this rank that started what is waited for
  Action pass = {};             // in which it happens; the last one for the end of the step
  bool starts() const { return waits_for == kStarts; }
};

/// What a step depends on besides the plan.
struct StepLayers {
  /// Cut layers of a unit, in their order: their names in errors. By Plan::units; empty where it is not cut.
  std::vector<std::vector<std::string>> exchanges;
  /// Does something read the last sum of a unit again where it is recomputed? (With LayerScale.)
  bool last_sum_again = true;
  int64_t frozen_units = 0;   // at the beginning: no backward pass comes to them
  int64_t micro_batches = 1;  // of a step, where the plan does not say it
  int64_t pieces = 1;         // TensorGroup::run()
};
/// Of a plan whose model is not known: two layers in each unit that is cut, nothing frozen.
StepLayers any_layers(const Plan& plan);

/// A step of `rank`, from its first pass to the sum over all ranks at its end, after an update: nothing is
/// gathered. Requires: plan.units are those of the layers.
std::vector<StepEvent> step_events(const Plan& plan, const StepLayers& layers, int64_t rank);

/// Errors: UserError that names both sides: members of a group that start different collectives, a message
/// that differs where it is received, or ranks that wait for each other. `ranks`: the events of each rank.
/// `room`: messages of a link that may be sent before the first of them is received and a send waits; 0: any
/// number.
void check_events(std::span<const std::vector<StepEvent>> ranks, int64_t room = 0);

}  // namespace tessera::plan
