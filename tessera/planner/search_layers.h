// SPDX-License-Identifier: Apache-2.0
// Layouts layer by layer within one frame of the search. Private to this room.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "tessera/planner/candidates.h"
#include "tessera/planner/stage_bounds.h"
#include "tessera/planner/stage_fronts.h"

namespace tessera::planner {

/// Seconds of an image that follow from a bound of the passes: with the end of the step and the data.
double of_image(const ProfileTables& tables, const Frame& frame, double passes);

/// Units gathered ahead where units have different layouts: the bounds do not hold for more.
inline constexpr std::array<int64_t, 2> kPrefetches = {1, 0};

/// One frame. Requires: no interleaved pipeline.
class LayerSearch {
 public:
  LayerSearch(const ProfileTables& tables, const SearchQuestion& question, const Frame& frame,
              const FrameBounds& bounds, ChoiceWorks& works, Candidates& candidates);

  /// Seconds of an image that no plan of the frame can be below, whatever its memory. Fast.
  double quick_bound() const;
  /// Tries the frame's plans. Returns a bound, as quick_bound(), of those that it did not try.
  double run();

 private:
  using Cut = std::vector<int64_t>;  // first unit of each stage

  // Seconds of a unit; form: of bound_forms().
  double once(const StepForm& form, const UnitWork& work, Place place) const;  // one micro-batch, and update
  double beyond(const StepForm& form, const UnitWork& work, Place place, size_t stage) const;
  double whole_step(const StepForm& form, const UnitWork& work, Place place) const;  // with one stage
  /// As it would be among units of its kind: the greatest of the forms for every pass.
  double estimate(const UnitWork& work, Place place, double forwards, double backwards) const;

  /// The least seconds of a unit over all choices and places.
  double least(size_t unit, const std::function<double(const UnitWork&, Place)>& seconds) const;

  // Every plan.
  double plans() const;
  double try_all();
  void try_all_of_cut(const Cut& cut, int64_t prefetch);
  bool may_be_better(const Cut& cut, const std::vector<size_t>& choices) const;

  // Plans of fronts.
  double try_fronts();
  double try_one_stage();
  double bound_of_stages();
  std::vector<Cut> promising_cuts();
  /// The layouts that are fastest by estimate() with this cut within budgets that are lowered until the plan
  /// fits. Seconds of an image; infinity if none fits.
  double try_cut(const Cut& cut, int64_t prefetch, Order order);
  void improve(Cut cut, double seconds);
  std::optional<std::vector<size_t>> choices_within(const Cut& cut, const std::vector<double>& budgets,
                                                    Order order, std::vector<double>* bytes);
  Candidates::Outcome try_choices(const Cut& cut, const std::vector<size_t>& choices, int64_t prefetch);
  size_t end_of(const Cut& cut, size_t stage) const {
    return stage + 1 < cut.size() ? static_cast<size_t>(cut[stage + 1]) : units_;
  }
  std::vector<StageFronts> fronts(const std::function<double(const UnitWork&, Place, size_t)>& seconds) const;

  const ProfileTables& tables_;
  const SearchQuestion& question_;
  const Frame& frame_;
  const FrameBounds& bounds_;
  const Choices& choices_;
  const std::vector<std::vector<UnitWork>>& works_;  // by choice and unit
  Candidates& candidates_;
  size_t units_;
  std::vector<std::string> keys_;
  bool one_channel_;
  BoundForms forms_;
  std::vector<StepForm> step_forms_;
  std::vector<StageFronts> proposals_;  // by stage: what try_cut() takes layouts from
};

}  // namespace tessera::planner
