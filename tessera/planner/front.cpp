// SPDX-License-Identifier: Apache-2.0
// Note [Choice by choice]: G(j, k) is the front of k layers that make only the first j choices. Its points
// make choice j either not at all or at least once, so it is the front of G(j - 1, k) and of G(j, k - 1)
// with one more layer of choice j. Both are sorted by memory: merging them and dropping dominated points is
// one linear pass. Every combination of counts arises in exactly one way. For S choices and n layers this
// takes S * n passes over fronts of F points; doubling (the front of 2k layers as a sum of two fronts of k
// layers) takes F * F steps instead, and F soon exceeds S * n.
//
// Dropping a dominated partial combination is exact: whatever layers complete it can complete the dominating
// one at the same cost. The tolerance is divided by the number of passes from G(0, 0) to G(S, n), S + n.
#include "tessera/planner/front.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::planner {
namespace {

/// A point of an unfinished front. `origin` identifies the combination; each algorithm defines how.
struct Candidate {
  Cost cost;
  uint64_t origin = 0;
};

Cost plus(const Cost& one, const Cost& two) { return {one.memory + two.memory, one.time + two.time}; }

bool comes_before(const Candidate& one, const Candidate& two) {
  return one.cost.memory != two.cost.memory ? one.cost.memory < two.cost.memory
                                            : one.cost.time < two.cost.time;
}

/// Keeps those of the offered candidates that are not dominated. They must be offered in the order of
/// comes_before().
class Staircase {
 public:
  /// `tolerance`: relative, see FrontOptions.
  Staircase(size_t room, double tolerance) : factor_(1 + tolerance) { kept_.reserve(room); }
  void offer(const Candidate& next) {
    if (kept_.empty() || next.cost.time * factor_ < kept_.back().cost.time) kept_.push_back(next);
  }
  std::vector<Candidate> take() { return std::move(kept_); }

 private:
  double factor_;
  std::vector<Candidate> kept_;
};

/// The front of two fronts' points.
std::vector<Candidate> united(std::span<const Candidate> one, std::span<const Candidate> two,
                              double tolerance) {
  Staircase front(one.size() + two.size(), tolerance);
  size_t i = 0, j = 0;
  while (i < one.size() || j < two.size()) {
    const bool first = j == two.size() || (i < one.size() && !comes_before(two[j], one[i]));
    front.offer(first ? one[i++] : two[j++]);
  }
  return front.take();
}

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

void check(std::span<const Cost> costs, const FrontOptions& options) {
  for (const Cost& cost : costs) {
    TESSERA_CHECK(cost.memory >= 0 && cost.time >= 0 && std::isfinite(cost.time), "memory ", cost.memory,
                  ", time ", cost.time);
  }
  TESSERA_CHECK(options.tolerance >= 0 && std::isfinite(options.tolerance), options.tolerance);
}

/// The choices of partial combinations as linked lists that share their tails.
class Histories {
 public:
  static constexpr uint64_t kNone = 0;  // no layers

  uint64_t add(uint64_t history, size_t choice) {
    links_.push_back({history, choice});
    return links_.size();
  }
  void count(uint64_t history, std::span<int32_t> counts) const {
    for (; history != kNone; history = links_[history - 1].rest) ++counts[links_[history - 1].choice];
  }

 private:
  struct Link {
    uint64_t rest;
    size_t choice;
  };
  std::vector<Link> links_;
};

/// A choice that no other one dominates, and its place among all choices.
struct Choice {
  Cost cost;
  size_t index = 0;
};

std::vector<Choice> undominated(std::span<const Cost> choices) {
  std::vector<Candidate> sorted;
  for (size_t i = 0; i < choices.size(); ++i) sorted.push_back({choices[i], i});
  std::ranges::stable_sort(sorted, comes_before);
  Staircase front(sorted.size(), 0);
  for (const Candidate& choice : sorted) front.offer(choice);
  std::vector<Choice> kept;
  for (const Candidate& choice : front.take()) kept.push_back({choice.cost, choice.origin});
  return kept;
}

/// The fronts G(j, k) of Note [Choice by choice] for one j and all k.
class Table {
 public:
  Table(int64_t layers, int64_t memory_limit, double tolerance)
      : limit_(memory_limit), tolerance_(tolerance), fronts_(static_cast<size_t>(layers) + 1) {
    if (limit_ >= 0) fronts_[0].push_back({});
  }

  /// From G(j - 1, k) to G(j, k), where `choice` is choice j.
  void allow(const Choice& choice) {
    for (size_t k = 1; k < fronts_.size(); ++k) {
      const std::vector<Candidate> longer = with_one_more(fronts_[k - 1], choice.cost);
      fronts_[k] = united(fronts_[k], longer, tolerance_);
      for (Candidate& point : fronts_[k]) {
        if (point.origin & kLonger) point.origin = histories_.add(point.origin & ~kLonger, choice.index);
      }
    }
  }
  std::span<const Candidate> front(size_t layers) const { return fronts_[layers]; }
  void count(uint64_t history, std::span<int32_t> counts) const { histories_.count(history, counts); }

 private:
  static constexpr uint64_t kLonger = uint64_t{1} << 63;  // a link is still to be added to this history

  std::vector<Candidate> with_one_more(std::span<const Candidate> front, const Cost& layer) const {
    std::vector<Candidate> longer;
    longer.reserve(front.size());
    for (const Candidate& point : front) {
      const Cost cost = plus(point.cost, layer);
      if (cost.memory > limit_) break;  // and all points after it
      longer.push_back({cost, point.origin | kLonger});
    }
    return longer;
  }

  int64_t limit_;
  double tolerance_;
  std::vector<std::vector<Candidate>> fronts_;  // by number of layers
  Histories histories_;
};

/// The front of one point of `first` out of a range and one of `second`. An origin is
/// (index in first) * (points of second) + (index in second).
std::vector<Candidate> sums(std::span<const Cost> first, size_t offset, std::span<const Cost> second,
                            int64_t limit) {
  if (first.size() > 1) {
    const size_t half = first.size() / 2;
    return united(sums(first.first(half), offset, second, limit),
                  sums(first.subspan(half), offset + half, second, limit), 0);
  }
  std::vector<Candidate> all;
  for (size_t j = 0; j < second.size() && !first.empty(); ++j) {
    const Cost cost = plus(first[0], second[j]);
    if (cost.memory > limit) break;  // and all points after it
    all.push_back({cost, offset * second.size() + j});
  }
  return all;
}

std::vector<Cost> costs_of(std::span<const Candidate> candidates) {
  std::vector<Cost> costs;
  costs.reserve(candidates.size());
  for (const Candidate& candidate : candidates) costs.push_back(candidate.cost);
  return costs;
}

}  // namespace

Front::Front(size_t choices, std::vector<Cost> points, std::vector<int32_t> counts)
    : choices_(choices), points_(std::move(points)), counts_(std::move(counts)) {
  check(points_, {});
  TESSERA_CHECK(counts_.size() == points_.size() * choices_, counts_.size(), " counts");
  for (size_t i = 1; i < points_.size(); ++i) {
    const Cost &last = points_[i - 1], &next = points_[i];
    TESSERA_CHECK(last.memory < next.memory && last.time > next.time, "point ", i);
  }
}

std::span<const int32_t> Front::counts(size_t point) const {
  TESSERA_CHECK(point < points_.size(), point);
  return std::span(counts_).subspan(point * choices_, choices_);
}

std::optional<size_t> Front::best(int64_t budget) const {
  const auto after = std::ranges::upper_bound(points_, budget, {}, &Cost::memory);
  if (after == points_.begin()) return std::nullopt;
  return static_cast<size_t>(after - points_.begin()) - 1;
}

std::vector<Front> fronts_up_to(int64_t layers, std::span<const Cost> choices, const FrontOptions& options) {
  TESSERA_CHECK(layers >= 0, layers);
  check(choices, options);
  const std::vector<Choice> kept = undominated(choices);
  const int64_t most = kept.empty() ? 0 : kept.back().cost.memory;
  TESSERA_CHECK(most <= kMost / std::max<int64_t>(layers, 1), "memory ", most, " of ", layers, " layers");
  const auto passes = static_cast<double>(layers) + static_cast<double>(kept.size());
  Table table(layers, options.memory_limit, std::expm1(std::log1p(options.tolerance) / std::max(passes, 1.)));
  for (const Choice& choice : kept) table.allow(choice);
  std::vector<Front> fronts;
  for (size_t k = 0; k <= static_cast<size_t>(layers); ++k) {
    const std::span<const Candidate> points = table.front(k);
    std::vector<int32_t> counts(points.size() * choices.size());
    for (size_t i = 0; i < points.size(); ++i)
      table.count(points[i].origin, std::span(counts).subspan(i * choices.size(), choices.size()));
    fronts.emplace_back(choices.size(), costs_of(points), std::move(counts));
  }
  return fronts;
}

Front front_of(int64_t layers, std::span<const Cost> choices, const FrontOptions& options) {
  return std::move(fronts_up_to(layers, choices, options).back());
}

Front sum(const Front& first, const Front& second, const FrontOptions& options) {
  check({}, options);
  // The recursion halves the front with fewer points.
  const bool swapped = first.points().size() > second.points().size();
  const Front& few = swapped ? second : first;
  const Front& many = swapped ? first : second;
  if (!few.points().empty()) {
    const int64_t one = few.points().back().memory, two = many.points().back().memory;
    TESSERA_CHECK(one <= kMost - two, "memory ", one, " and ", two);
  }
  const std::vector<Candidate> all = sums(few.points(), 0, many.points(), options.memory_limit);
  const std::vector<Candidate> kept = united(all, {}, options.tolerance);
  std::vector<int32_t> counts;
  for (const Candidate& point : kept) {
    const uint64_t in_few = point.origin / many.points().size();
    const uint64_t in_many = point.origin % many.points().size();
    std::ranges::copy(first.counts(swapped ? in_many : in_few), std::back_inserter(counts));
    std::ranges::copy(second.counts(swapped ? in_few : in_many), std::back_inserter(counts));
  }
  return {first.choices() + second.choices(), costs_of(kept), std::move(counts)};
}

}  // namespace tessera::planner
