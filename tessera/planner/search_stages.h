// SPDX-License-Identifier: Apache-2.0
// Layouts layer by layer of a pipeline with several stages. Private to this room.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "tessera/planner/layer_frame.h"
#include "tessera/planner/stage_options.h"

namespace tessera::planner {

/// Cuts and stage options that are best by the bound of Note [Pipelines] in stage_bounds.cpp.
class StagesSearch {
 public:
  /// `options`: as StageOptions.
  StagesSearch(const LayerFrame& frame, OptionCache& options);
  /// Tries plans. Returns seconds of an image that no plan of the frame can be below.
  double run();

 private:
  struct Layout {
    double way = 0, beyond = 0;  // seconds: the sum of the stages; the most of them
    double late = 0;             // Note [The last stage] in search_stages.cpp
    LayerFrame::Cut cut;
    std::vector<StagePoint> stages;
    double seconds() const { return std::max(way + beyond, late); }
  };
  /// Where a stage may begin and end in a plan that is better than the best, and its points there.
  struct Window {
    size_t first_begin = 0, last_begin = 0;
    std::vector<size_t> least_units, most_units;        // by begin
    std::map<std::vector<size_t>, StagePoints> points;  // by key and count of runs of units
    std::vector<std::vector<const StagePoints*>> at;    // by begin and units
  };
  /// The least that a unit adds at any place, by key.
  struct LeastOfUnits {
    std::vector<double> way, both;  // both: way and beyond
  };

  /// Seconds of the passes that a better plan has at most, without messages between stages.
  double most_seconds() const;
  LeastOfUnits least_of_units(const ChannelGroup& group, size_t stage) const;
  void set_least();
  /// False: no cut can be better.
  bool set_windows();
  void set_points(size_t stage);
  StagePoints points_of(size_t stage, size_t begin, size_t end);
  /// Of the layouts in which no stage's `beyond` is above `most` the one with the least `way` or `late`;
  /// nothing: there is no such layout.
  enum class Least { kWay, kLate };
  std::optional<Layout> least_layout(double most, Least least) const;
  /// The least that the greatest `beyond` can be; infinity: nothing fits.
  double least_beyond() const;
  /// Bound of the passes of all layouts; collects some that are near it.
  double solve(std::vector<Layout>* layouts) const;
  void propose(std::vector<Layout> layouts);
  /// False: it does not fit; then the budgets of its stages are lowered.
  bool try_layout(const Layout& layout, int64_t prefetch);
  /// Calls for all windows' points: stage, begin, end, points.
  template <typename Visit>
  void for_each_point(Visit visit) const;

  const LayerFrame& frame_;
  StageOptions options_;
  std::vector<Window> windows_;                            // by stage
  std::vector<double> budgets_;                            // bytes by stage
  std::vector<std::vector<LeastOfUnits>> least_of_group_;  // by stage and group
  std::vector<LeastOfUnits> least_;                        // by stage, over all groups
  double least_way_ = 0;                                   // of all units
};

}  // namespace tessera::planner
