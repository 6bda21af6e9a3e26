// SPDX-License-Identifier: Apache-2.0
// The search core of the planner: which combinations of choices for identical layers are worth considering.
// Memory and time of layers add up, so a combination is described by how many layers make each choice.
// Pure functions and values; safe from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

namespace tessera::planner {

/// What a layer costs under one choice of its layout, or several layers together.
struct Cost {
  int64_t memory = 0;  // bytes, or any other unit that is used throughout
  double time = 0;     // seconds, or any other unit that is used throughout
  bool operator==(const Cost&) const = default;
};

/// What a front may leave out.
struct FrontOptions {
  /// Points with more memory than this are dropped.
  int64_t memory_limit = std::numeric_limits<int64_t>::max();
  /// Relative difference of time below which a point may be dropped in favour of one with no more memory.
  /// 0: only dominated points are dropped, and the front is exact. With a tolerance e, the best time under
  /// any memory budget is at most (1 + e) times the exact one; sums of fronts multiply these factors as
  /// sum() says.
  double tolerance = 0;
};

/// The Pareto front of memory and time: no point has both at most as much memory and at most as much time as
/// another. Points that are equal in both are kept once. Each point knows how many layers make each choice.
class Front {
 public:
  /// The front of no layers: one point without cost, over no choices.
  Front() : points_(1) {}
  /// A front of given points. `counts` lists `choices` values for each point. Errors: InternalError for a
  /// negative or non-finite cost, a wrong number of counts, and points whose memory does not rise or whose
  /// time does not fall from each to the next.
  Front(size_t choices, std::vector<Cost> points, std::vector<int32_t> counts);

  /// Points by rising memory and falling time. Empty if nothing fits into the memory limit.
  std::span<const Cost> points() const { return points_; }
  /// Number of choices that counts() lists.
  size_t choices() const { return choices_; }
  /// How many layers make each choice, in the order in which the choices were given. Requires:
  /// point < points().size().
  std::span<const int32_t> counts(size_t point) const;
  /// Index of the point with the least time among those with at most `budget` memory; nothing if there is
  /// none. Takes logarithmic time.
  std::optional<size_t> best(int64_t budget) const;

 private:
  size_t choices_ = 0;
  std::vector<Cost> points_;
  std::vector<int32_t> counts_;  // choices_ values for each point
};

/// The fronts of 0, 1, ..., `layers` identical layers, each of which makes one of `choices`. All of them
/// together take no longer than the last one alone. Exact: memory is not rounded to a grid. Errors:
/// InternalError for a negative number of layers, a negative or non-finite cost, a negative or non-finite
/// tolerance, and memory that overflows. Note [Choice by choice] in front.cpp describes the algorithm and its
/// cost.
std::vector<Front> fronts_up_to(int64_t layers, std::span<const Cost> choices,
                                const FrontOptions& options = {});

/// The last of fronts_up_to().
Front front_of(int64_t layers, std::span<const Cost> choices, const FrontOptions& options = {});

/// The front of two groups of layers together, such as blocks and a head. counts() of the sum lists the
/// choices of `first`, then those of `second`. If the fronts had tolerances e and f and the sum has g, the
/// best time under any budget is at most (1 + max(e, f)) * (1 + g) times the exact one. With fronts of m and
/// n points, m * n * log(min(m, n)) steps at most. Errors: as fronts_up_to().
Front sum(const Front& first, const Front& second, const FrontOptions& options = {});

}  // namespace tessera::planner
