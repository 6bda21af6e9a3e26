// SPDX-License-Identifier: Apache-2.0
// What a stage of a pipeline may look like. Private to this room.
#pragma once

#include <cstddef>
#include <map>
#include <vector>

#include "tessera/planner/layer_frame.h"

namespace tessera::planner {

/// A stage whose blocks have one layout, or two of one group: the first so many blocks have `first`. Stem and
/// head have that of the block beside them, without_cut().
struct StageOption {
  size_t first = 0, second = 0;  // choices
  size_t blocks_of_first = 0;
  StageSum sum;  // of the greatest forms
};

/// An option as a stage of the pipeline.
struct StagePoint {
  /// Seconds of one micro-batch forward and back. Of the first stage, whose last backward pass ends every
  /// step: of the first forward and that backward pass, with the update.
  double way = 0;
  double beyond = 0;  // beyond_one_pass(); of the first stage without delay_of(), which its way has
  double delay = 0;   // delay_of(), where the way does not have it
  double bytes = 0;   // at least
  const StageOption* option = nullptr;
  /// What the stage adds to the way of a micro-batch where its first forward and last backward pass count.
  double late_way() const { return way + delay; }
};

/// Of a stage's points those that no other one is better than in `beyond` and in one more, by rising
/// `beyond`.
struct StagePoints {
  std::vector<StagePoint> by_way, by_late_way;
};

/// Key and count of units that follow each other, in turn.
std::vector<size_t> runs_of(const std::vector<size_t>& keys, size_t begin, size_t end);

/// By group and runs_of().
using OptionCache = std::map<std::pair<size_t, std::vector<size_t>>, std::vector<StageOption>>;

class StageOptions {
 public:
  /// `options`: of frames with the same works, which share them.
  StageOptions(const LayerFrame& frame, OptionCache& options) : frame_(frame), options_(options) {}
  /// Of a group, of a stage with the units [begin, end).
  const std::vector<StageOption>& of(size_t group, size_t begin, size_t end);
  /// Adds those of the group that fit into `budget` bytes, with way and beyond of at most `most` together.
  void add_points(size_t group, size_t stage, size_t begin, size_t end, double budget, double most,
                  std::vector<StagePoint>* points);
  /// Choices of the units [begin, end).
  std::vector<size_t> chosen(const StageOption& option, size_t begin, size_t end) const;

 private:
  std::vector<StageOption> make(const ChannelGroup& group, size_t begin, size_t end) const;

  const LayerFrame& frame_;
  OptionCache& options_;
};

StagePoints undominated(std::vector<StagePoint> points);

}  // namespace tessera::planner
