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
  double occupied = 0;  // nothing is computed: exchanges, copies by the rank, messages that nothing can hide
  double gathers = 0;   // of parameters, beside computation
  double sums = 0;      // of gradients, beside computation; on the same channel
  double copies = 0;    // of gradients that replicas have summed; on the same channel
};

/// Where a unit stands in its stage: nothing hides the gather before a stage's first unit, and the sum of
/// gradients behind it; the last unit may still be gathered when its backward pass begins.
struct Place {
  bool is_first = false, is_last = false;
  bool operator==(const Place&) const = default;
};

struct UnitWork {
  /// By place: neither, first, last, both.
  std::array<std::array<PassWork, kPassKinds>, 4> passes;
  double optimizer = 0;  // seconds of the update
  /// Seconds of collecting the gradients of the first micro-batch, and of each other one.
  double first_accumulation = 0, accumulation = 0;
  plan::UnitMemory memory;
  plan::Span channel = {};  // of its messages; size 1: none
  const std::array<PassWork, kPassKinds>& at(Place place) const {
    return passes[(place.is_first ? 1u : 0u) + (place.is_last ? 2u : 0u)];
  }
};

/// Of every unit of a stage that has all units of the model. `question`: of a plan with one stage, whose
/// ranks are those of a pipeline stage; its accumulation is at least 2 where a step has several
/// micro-batches. `messages`: plan::stage_messages() of the plan. Errors: as predict_step().
std::vector<UnitWork> unit_works(const ProfileTables& tables, const StepQuestion& question,
                                 const std::vector<plan::UnitMessages>& messages);

/// A function of a unit's work in a pass whose sum over the units of a stage is at most the time that the
/// pass takes, with or without overlap.
struct BoundForm {
  double compute = 1, occupied = 1, gathers = 0, sums = 0, copies = 0;
  /// Seconds, or 0: none. With one, min(compute and occupied, window) + max(messages - window, 0).
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
/// On any channels, with a prefetch of at most 1.
BoundForms forms_of_channels(const Profile& profile, const PassWindows& windows);

/// A form for each direction, since a step may wait for messages in one and compute in the other.
struct StepForm {
  BoundForm forward, backward;
  std::array<double, kPassKinds> of(const std::array<PassWork, kPassKinds>& passes) const {
    return {forward.of(passes[kFirstForward]), forward.of(passes[kForward]), backward.of(passes[kBackward]),
            backward.of(passes[kLastBackward])};
  }
};

/// All pairs.
std::vector<StepForm> step_forms(const BoundForms& forms);

}  // namespace tessera::planner
