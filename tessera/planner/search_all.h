// SPDX-License-Identifier: Apache-2.0
// Every plan of a frame, where there are few: each unit with each choice. Private to this room.
#pragma once

#include <vector>

#include "tessera/planner/layer_frame.h"

namespace tessera::planner {

class AllPlans {
 public:
  explicit AllPlans(const LayerFrame& frame);
  /// How many there are.
  double count() const;
  /// A lower bound of the seconds that each of them takes for an image.
  double quick_bound() const;
  /// Tries them. Returns a bound, as quick_bound(), of those that it did not try.
  double run();

 private:
  void try_cut(const LayerFrame::Cut& cut, int64_t prefetch);
  bool may_be_better(const LayerFrame::Cut& cut, const std::vector<size_t>& chosen) const;
  bool is_allowed(size_t unit, size_t choice) const { return frame_.choices.allowed[unit][choice]; }

  const LayerFrame& frame_;
  std::vector<StepForm> step_forms_;
};

}  // namespace tessera::planner
