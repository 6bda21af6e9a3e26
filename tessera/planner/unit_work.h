// SPDX-License-Identifier: Apache-2.0
// What one unit adds to a step under one choice of its layout, for bounds of the search. Private to this
// room.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "tessera/plan/memory.h"
#include "tessera/plan/traffic.h"
#include "tessera/planner/step_time.h"

namespace tessera::planner {

/// Passes of a micro-batch that differ in their messages: the step's first forward pass, other forward
/// passes, backward passes, the step's last backward pass.
enum Pass : size_t { kFirstForward, kForward, kBackward, kLastBackward, kPassKinds };

/// Seconds of a unit in one pass.
struct PassWork {
  double compute = 0;   // with what it computes again
  double occupied = 0;  // nothing is computed: exchanges, copies by the rank
  double late = 0;      // of these, copies that may come after the gradient was sent to the stage before
  double exposed = 0;   // messages that no computation can hide, on the channel of those that follow
  double gathers = 0;   // of parameters, beside computation
  double sums = 0;      // of gradients, beside computation; on the same channel
  double copies = 0;    // of gradients that replicas have summed; on the same channel
  /// Sums and copies of the replicas of a unit that is sharded as well: on a second channel, that of units
  /// with the same channel.
  double replicas = 0;
  /// Where the unit is cut, sums of the parameters that are not, beside computation; on another channel.
  double rows = 0;
  /// Of the gathers, behind units of the same layout: at least so much is beside computation, and for at
  /// least so long they keep the rank waiting.
  double beside = 0, stalled = 0;
};

/// Where a unit stands in its stage: nothing hides the gather before a stage's first unit, and the sum of
/// gradients behind it; the last unit may still be gathered when its backward pass begins. Next to the stem
/// or the head, their computation alone hides what else would hide behind a whole block.
struct UnitPosition {
  bool is_first = false, is_last = false, is_after_stem = false, is_before_head = false;
  bool operator==(const UnitPosition&) const = default;
  size_t index() const {
    return (is_first ? 1u : 0u) + (is_last ? 2u : 0u) + (is_after_stem ? 4u : 0u) +
           (is_before_head ? 8u : 0u);
  }
};

/// The position of a unit of the stage [begin, end) of a model.
inline UnitPosition unit_position(size_t unit, size_t begin, size_t end, size_t units) {
  return {.is_first = unit == begin,
          .is_last = unit + 1 == end,
          .is_after_stem = unit == 1 && begin == 0,
          .is_before_head = unit + 2 == units && end == units};
}

/// Of which one has the least of any form.
inline constexpr std::array<UnitPosition, 4> kUnitPositions = {
    UnitPosition{}, {true, false}, {false, true}, {true, true}};

struct UnitWork {
  std::array<std::array<PassWork, kPassKinds>, 16> passes;  // by UnitPosition::index()
  double optimizer = 0;                                     // seconds of the update
  /// Seconds by which collecting gradients takes less in the first micro-batch than in others, if it does;
  /// part of the backward passes' computation.
  double accumulation = 0;
  plan::UnitMemory memory;
  plan::Span channel = {};     // of its messages; size 1: none
  bool copies_itself = false;  // the rank makes some of its messages by itself
  const std::array<PassWork, kPassKinds>& at(UnitPosition place) const { return passes[place.index()]; }
};

struct LeastTimes {
  double lag = 0;    // seconds that ranks wait for the slowest, for each second of computation of units that
                     // exchange nothing
  double share = 1;  // of computation: BusyRanks::least_share()
};

/// Of every unit of a stage that has all units of the model. `question`: of a plan with one stage, whose
/// ranks are those of a pipeline stage; its accumulation is at least 2 where a step has several
/// micro-batches. `messages`: plan::stage_messages() of the plan. Errors: as predict_step().
std::vector<UnitWork> unit_works(const ProfileTables& tables, const StepQuestion& question,
                                 const std::vector<plan::UnitMessages>& messages, const LeastTimes& least);

/// Sets `beside` and `stalled`, and limits `rows`, of `blocks`: the units between stem and head with every
/// choice of one layout. `share`: LeastTimes::share of their works. Note [Units of one layout].
void set_neighbours(const Profile& profile, double share, const std::vector<UnitWork*>& blocks);

/// A function of a unit's work in a pass whose sum over the units of a stage is at most the time that the
/// pass takes, with or without overlap.
struct BoundForm {
  double compute = 1, occupied = 1, exposed = 1, gathers = 0, sums = 0, copies = 0, replicas = 0, rows = 0,
         beside = 0, stalled = 0;
  /// Seconds, or 0: none. With one, min(compute, occupied and exposed, window) + max(messages - window, 0):
  /// not linear.
  double window = 0;
  double of(const PassWork& work) const;
};

/// The least seconds of a pass of a unit, over units that travel beside each other.
struct PassWindows {
  double forward = 0, backward = 0;
};

/// Forms for each direction, whose maximum bounds the time of a pass from below; the first is without
/// messages. Note [Forms] in unit_work.cpp.
struct BoundForms {
  std::vector<BoundForm> forward, backward;
};
/// The messages of all units are on one channel.
BoundForms forms_of_one_channel(const Profile& profile);
/// And those between stem and head have one layout: of works that set_neighbours() has seen,
/// with a prefetch of at most 1.
BoundForms forms_of_one_layout(const Profile& profile);
/// On any channels, with a prefetch of at most 1.
BoundForms forms_of_channels(const Profile& profile, const PassWindows& windows);

/// A form for each pass, since a step may wait for messages in one and compute in the other.
struct StepForm {
  std::array<BoundForm, kPassKinds> passes;
  std::array<double, kPassKinds> of(const std::array<PassWork, kPassKinds>& works) const;
  /// The same for a unit whose messages are on another channel.
  StepForm without_messages() const;
  /// (1 - share) of this and `share` of the other, which bounds a step as both do. Neither has a window.
  StepForm mixed(const StepForm& other, double share) const;
};

/// All pairs of one form for the forward passes and one for the backward passes.
std::vector<StepForm> step_forms(const BoundForms& forms);

}  // namespace tessera::planner
