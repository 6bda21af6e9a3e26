// SPDX-License-Identifier: Apache-2.0
// Bounds of a step from what the units of its stages do. Private to this room.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "tessera/planner/alike_units.h"
#include "tessera/planner/search_space.h"
#include "tessera/planner/unit_work.h"

namespace tessera::planner {

/// Works of every key (AlikeUnits) under every choice, in stages of one number of ranks.
class ChoiceWorks {
 public:
  ChoiceWorks(const ProfileTables& tables, const AlikeUnits& alike, const SearchQuestion& question,
              int64_t stages);
  const Choices& choices() const { return choices_; }
  const AlikeUnits& alike() const { return alike_; }
  /// By choice and key, where allowed. `accumulates`: a step has several micro-batches.
  const std::vector<std::vector<UnitWork>>& of(int64_t images, bool accumulates);
  /// The choice of a unit where all blocks have `choice`: that one, or without_cut() where it is not allowed.
  size_t choice_of(size_t unit, size_t choice) const { return whole_[choice][alike_.keys()[unit]]; }

 private:
  const AlikeUnits& alike_;
  const SearchQuestion& question_;
  Choices choices_;
  LeastTimes least_;                        // unit_works()
  std::vector<std::vector<size_t>> whole_;  // by choice and key: choice_of()
  std::vector<plan::Plan> plans_;           // of the small model, by choice: every unit has it where allowed
  std::vector<std::vector<plan::UnitMessages>> messages_;
  std::map<std::pair<int64_t, bool>, std::vector<std::vector<UnitWork>>> works_;
};

/// What a stage's memory holds of its passes at a time.
struct Waiting {
  int64_t micro_batches = 1;  // that wait for their backward pass
  bool has_gradients = true;  // a backward pass has run: gradients of several micro-batches are there
  /// Of units that need as much.
  double bytes(const plan::UnitMemory& memory) const;
};

/// Seconds of a stage's passes, and bytes.
struct StageSum {
  std::array<double, kPassKinds> passes = {};
  /// Of the backward passes, until the gradient is sent to the stage before: without the last sum.
  double sent = 0, last_sent = 0;
  double optimizer = 0, accumulation = 0;
  plan::UnitMemory memory;
  /// Of a micro-batch, on its way forward and back.
  double way() const { return passes[kForward] + sent; }
  /// Passes of all micro-batches, one after another.
  double all_passes(int64_t micro_batches) const;
  /// At least so many a rank needs at that time.
  double bytes(const Waiting& waiting) const;
};

/// What units of a stage do, added up: for forms without a window.
struct StageWork {
  std::array<PassWork, kPassKinds> passes = {};
  PassWork sent = {}, last_sent = {};  // of the backward passes, as in StageSum
  double optimizer = 0, accumulation = 0;
  plan::UnitMemory memory;
  /// `count` units that stand at such a place. Without `on_channel` their messages are left out.
  void add(const UnitWork& work, UnitPosition place, double count, bool on_channel);
  StageWork& operator+=(const StageWork& other);
  /// The greatest of the forms for each pass.
  StageSum sum(const BoundForms& forms) const;
  StepForm greatest(const BoundForms& forms) const;
};

/// The units [begin, end) of a model as a stage.
struct StageUnits {
  const std::vector<std::vector<UnitWork>>& works;  // by choice and key
  const std::vector<size_t>& keys;                  // by unit
  size_t begin = 0, end = 0;
  plan::Span channel = {};  // messages on other channels are left out

  /// Adds those in [from, to), all with one choice.
  void add(StageWork* stage, size_t from, size_t to, size_t choice) const;
};

/// What bounds do not depend on the layout of units.
struct FrameBounds {
  int64_t micro_batches = 1;
  bool is_gpipe = false, is_interleaved = false;
  std::vector<int64_t> forwards_first;  // by stage: n of Note [Pipelines]
  /// By stage and virtual stage of a rank: at the last time when most passes wait.
  std::vector<std::vector<Waiting>> waiting;
  /// Of a stage that is one virtual stage.
  const Waiting& waiting_of(size_t stage) const { return waiting[stage].front(); }
  double sends = 0;  // seconds of messages on the way of the first micro-batch
};

FrameBounds frame_bounds(const ProfileTables& tables, const SearchQuestion& question, const Frame& frame);

/// Seconds by which the first forward and the last backward pass of stage `index` are longer than others,
/// which can be negative. The last backward pass ends when the gradient is sent, and on the first stage,
/// where the step ends with it, when the last sums have ended.
double delay_of(const StageSum& stage, size_t index);

/// A time that the stage's passes cannot be below, were it alone, beyond the way of one micro-batch through
/// all stages: Note [Pipelines] in stage_bounds.cpp.
double beyond_one_pass(const StageSum& stage, const FrameBounds& frame, size_t index);

/// Seconds that no step with these stages can be below. One stage, or one for each pipeline stage; of an
/// interleaved pipeline one for each virtual stage.
double step_bound(std::span<const StageSum> stages, const FrameBounds& frame);

/// Adds a unit that stands at this place of the stage.
void add_unit(StageSum* stage, const UnitWork& work, UnitPosition place, const StepForm& form);

}  // namespace tessera::planner
