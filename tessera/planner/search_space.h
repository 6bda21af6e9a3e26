// SPDX-License-Identifier: Apache-2.0
// What the search chooses from. Private to this room.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "tessera/planner/lookup.h"
#include "tessera/planner/search.h"

namespace tessera::planner {

inline constexpr double kInfinite = std::numeric_limits<double>::infinity();

/// What a plan has besides the layout of its units and its cut into stages.
struct Frame {
  int64_t batch = 1;  // images of a step over all ranks
  int64_t stages = 1, virtual_stages = 1;
  int64_t micro_batches = 1;
  int64_t images = 1;  // of a rank, in a micro-batch
  plan::Schedule schedule = plan::Schedule::k1F1B;
  int64_t ahead = 0;
  plan::ScheduleShape shape() const { return {schedule, stages, virtual_stages, micro_batches, ahead}; }
};

/// All that fit the ranks and a batch of the question.
std::vector<Frame> frames_of(const ProfileTables& tables, const SearchQuestion& question);

/// Layouts of a unit.
struct Choices {
  std::vector<plan::UnitPlan> all;  // without names
  /// By unit of the model: may it have the choice of this index in `all`?
  std::vector<std::vector<bool>> allowed;
};

/// For a stage of so many ranks.
Choices choices_of(const ProfileTables& tables, const SearchQuestion& question, int64_t stages);

/// What a unit has in a plan whose blocks all have `choice`: stem and head have its level alone.
plan::UnitPlan without_cut(plan::UnitPlan choice);

/// SearchResult::restrictions.
std::vector<std::string> restrictions_of(const ProfileTables& tables, const SearchQuestion& question);

}  // namespace tessera::planner
