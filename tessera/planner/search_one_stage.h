// SPDX-License-Identifier: Apache-2.0
// Layouts layer by layer of a pipeline with one stage. Private to this room.
#pragma once

#include <optional>
#include <vector>

#include "tessera/planner/layer_frame.h"
#include "tessera/planner/stage_fronts.h"

namespace tessera::planner {

/// Blocks have choices of one group. Bounds and proposals come from the same fronts.
class OneStage {
 public:
  explicit OneStage(const LayerFrame& frame) : frame_(frame) {}
  /// Tries plans. Returns seconds of an image that no plan of the frame can be below.
  double run();

 private:
  double try_group(const ChannelGroup& group);
  StageFronts fronts(const ChannelGroup& group, const StepForm& form) const;
  StageWork work_of(const ChannelGroup& group, const std::vector<size_t>& chosen) const;
  /// Tries what is fastest within budgets that are lowered until it fits.
  void try_fastest(StageFronts& fronts, int64_t prefetch, Order order);

  const LayerFrame& frame_;
  double reserve_ = 0;  // bytes that every plan of the group needs besides what its units add
};

}  // namespace tessera::planner
