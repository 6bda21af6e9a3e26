// SPDX-License-Identifier: Apache-2.0
// Bounds of a step from what the units of its stages do. Private to this room.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "tessera/planner/search_space.h"
#include "tessera/planner/unit_work.h"

namespace tessera::planner {

/// Works of every unit under every choice, in stages of one number of ranks.
class ChoiceWorks {
 public:
  ChoiceWorks(const ProfileTables& tables, const SearchQuestion& question, int64_t stages);
  const Choices& choices() const { return choices_; }
  /// By choice and unit, where allowed. `accumulates`: a step has several micro-batches.
  const std::vector<std::vector<UnitWork>>& of(int64_t images, bool accumulates);
  /// Index of a choice. Requires: it is one of them.
  size_t index_of(const plan::UnitPlan& choice) const;

 private:
  const ProfileTables& tables_;
  const SearchQuestion& question_;
  Choices choices_;
  std::vector<plan::Plan> plans_;  // by choice: every unit has it as far as it is allowed
  std::vector<std::vector<plan::UnitMessages>> messages_;
  std::map<std::pair<int64_t, bool>, std::vector<std::vector<UnitWork>>> works_;
};

/// Seconds of a stage's passes, and bytes.
struct StageSum {
  std::array<double, kPassKinds> passes = {};
  /// Of the backward passes, until the gradient is sent to the stage before: without the last sum.
  double sent = 0, last_sent = 0;
  double optimizer = 0, first_accumulation = 0, accumulation = 0;
  plan::UnitMemory memory;
  /// Of a micro-batch, on its way forward and back.
  double way() const { return passes[kForward] + sent; }
  /// Passes of all micro-batches, one after another.
  double all_passes(int64_t micro_batches) const;
};

/// What bounds do not depend on the layout of units.
struct FrameBounds {
  int64_t micro_batches = 1;
  bool is_gpipe = false, is_interleaved = false;
  std::vector<int64_t> forwards_first;  // by stage: n of Note [Pipelines]
  std::vector<int64_t> under_way;       // by stage: most micro-batches that wait for backward
  double sends = 0;                     // seconds of messages on the way of the first micro-batch
};

FrameBounds frame_bounds(const ProfileTables& tables, const SearchQuestion& question, const Frame& frame);

/// A time that the stage's passes cannot be below, were it alone, beyond the way of one micro-batch through
/// all stages: Note [Pipelines] in stage_bounds.cpp.
double beyond_one_pass(const StageSum& stage, const FrameBounds& frame, size_t index);

/// Seconds that no step with these stages can be below. One stage, or one for each pipeline stage; of an
/// interleaved pipeline one for each virtual stage.
double step_bound(std::span<const StageSum> stages, const FrameBounds& frame);

/// Adds a unit that stands at this place of the stage.
void add_unit(StageSum* stage, const UnitWork& work, Place place, const StepForm& form);

}  // namespace tessera::planner
