// SPDX-License-Identifier: Apache-2.0
// Note [Limits in turn]: a step takes at least the sum of the stages' ways and the greatest of what they do
// beyond (Note [Pipelines]). With a limit T on the latter, the cut with the least sum W(T) is found stage by
// stage. Layouts whose greatest lies in an interval (a, b] take at least a + W(b). So the range of limits in
// which a better plan can lie is halved where this is least, until the intervals are narrow.
//
// Note [The last stage]: pipelines that sum gradients once a step have long last backward passes, and the one
// of the last stage is over before that of the stage before it begins. So a step also takes at least the sum
// of all stages' ways with these long passes, and what the last stage does beyond: Note [Pipelines] for the
// last stage. By itself this asks for a last stage that does next to nothing; with the limit T on all stages
// it does not. L(T), the least of it, is found as W(T) is: layouts in (a, b] take at least L(b).
#include "tessera/planner/search_stages.h"

#include <algorithm>

namespace tessera::planner {
namespace {

void keep_least(std::vector<double>* least, const std::vector<double>& others) {
  for (size_t i = 0; i < least->size(); ++i) (*least)[i] = std::min((*least)[i], others[i]);
}

}  // namespace

StagesSearch::StagesSearch(const LayerFrame& frame, OptionCache& options)
    : frame_(frame),
      options_(frame, options),
      windows_(frame.stages()),
      budgets_(frame.stages(), frame.question.memory) {}

double StagesSearch::most_seconds() const {
  const double best = kNearlyBest * frame_.candidates.best() * static_cast<double>(frame_.frame.batch);
  return best - frame_.tables.profile.step_seconds - frame_.bounds.sends;
}

StagesSearch::LeastOfUnits StagesSearch::least_of_units(const ChannelGroup& group, size_t stage) const {
  const std::vector<double> none(frame_.alike.first().size(), kInfinite);
  LeastOfUnits least = {none, none};
  for (size_t key = 0; key < none.size(); ++key) {
    for (const size_t choice : group.choices[key]) {
      const UnitWork& work = frame_.works[choice][key];
      for (const UnitPosition place : kUnitPositions) {
        StageSum sum;
        add_unit(&sum, work, place, group.form_of(work));
        const double way = sum.way(), both = way + beyond_one_pass(sum, frame_.bounds, stage);
        least.way[key] = std::min(least.way[key], way);
        least.both[key] = std::min(least.both[key], both);
      }
    }
  }
  return least;
}

void StagesSearch::set_least() {
  const std::vector<double> none(frame_.alike.first().size(), kInfinite);
  for (size_t s = 0; s < frame_.stages(); ++s) {
    std::vector<LeastOfUnits>& by_group = least_of_group_.emplace_back();
    LeastOfUnits& least = least_.emplace_back(LeastOfUnits{none, none});
    for (const ChannelGroup& group : frame_.groups()) {
      by_group.push_back(least_of_units(group, s));
      keep_least(&least.way, by_group.back().way);
      keep_least(&least.both, by_group.back().both);
    }
  }
  for (const size_t key : frame_.keys) least_way_ += least_[0].way[key];
}

/// A stage that adds both its way and what it does beyond, while the other stages have the least ways, may
/// take most_seconds().
bool StagesSearch::set_windows() {
  const double spare = most_seconds() - least_way_;
  const size_t stages = frame_.stages(), units = frame_.units();
  // How far each stage can reach from each beginning.
  std::vector<std::vector<size_t>> reach(stages, std::vector<size_t>(units + 1, 0));
  for (size_t s = 0; s < stages; ++s) {
    std::vector<double> least;
    for (size_t key = 0; key < least_[s].both.size(); ++key)
      least.push_back(std::max(least_[s].both[key] - least_[s].way[key], 0.0));
    size_t end = 0;
    double sum = 0;
    for (size_t begin = 0; begin < units; ++begin) {
      while (end < units && sum + least[frame_.keys[end]] <= spare) sum += least[frame_.keys[end++]];
      reach[s][begin] = end;
      if (end > begin)
        sum -= least[frame_.keys[begin]];
      else
        end = begin + 1;
    }
  }
  // The first beginning from which the stage and those behind it reach the end, and the last one that those
  // before it reach.
  std::vector<size_t> first(stages + 1, units), last(stages + 1, 0);
  for (size_t s = stages; s-- > 0;) {
    size_t begin = s;
    while (begin < units && reach[s][begin] < first[s + 1]) ++begin;
    first[s] = begin;
  }
  for (size_t s = 0; s < stages; ++s) {
    for (size_t begin = first[s]; begin <= last[s] && begin < units; ++begin)
      last[s + 1] = std::max(last[s + 1], std::min(reach[s][begin], units - (stages - s - 1)));
  }
  for (size_t s = 0; s < stages; ++s) {
    Window& window = windows_[s];
    window = {};
    window.first_begin = first[s];
    window.last_begin = last[s];
    if (first[s] > last[s] || first[s] >= units) return false;
    for (size_t begin = first[s]; begin <= last[s]; ++begin) {
      const size_t least_end = s + 1 == stages ? units : std::max(first[s + 1], begin + 1);
      const size_t most_end = std::min(reach[s][begin], units - (stages - s - 1));
      window.least_units.push_back(least_end - begin);
      window.most_units.push_back(most_end >= least_end ? most_end - begin : 0);
    }
  }
  return true;
}

StagePoints StagesSearch::points_of(size_t stage, size_t begin, size_t end) {
  double others = least_way_;
  for (size_t i = begin; i < end; ++i) others -= least_[stage].way[frame_.keys[i]];
  const double most = most_seconds() - others;
  std::vector<StagePoint> points;
  for (size_t group = 0; group < frame_.groups().size(); ++group) {
    double least = 0;
    for (size_t i = begin; i < end; ++i) least += least_of_group_[stage][group].both[frame_.keys[i]];
    if (least <= most) options_.add_points(group, stage, begin, end, budgets_[stage], most, &points);
  }
  return undominated(std::move(points));
}

void StagesSearch::set_points(size_t stage) {
  Window& window = windows_[stage];
  window.points.clear();
  window.at.assign(window.least_units.size(), {});
  for (size_t i = 0; i < window.at.size(); ++i) {
    const size_t begin = window.first_begin + i;
    for (size_t count = window.least_units[i]; count <= window.most_units[i]; ++count) {
      const auto [found, is_new] = window.points.try_emplace(runs_of(frame_.keys, begin, begin + count));
      if (is_new) found->second = points_of(stage, begin, begin + count);
      window.at[i].push_back(&found->second);
    }
  }
}

template <typename Visit>
void StagesSearch::for_each_point(Visit visit) const {
  for (size_t s = 0; s < windows_.size(); ++s) {
    const Window& window = windows_[s];
    for (size_t i = 0; i < window.at.size(); ++i) {
      const size_t begin = window.first_begin + i;
      for (size_t j = 0; j < window.at[i].size(); ++j)
        visit(s, begin, begin + window.least_units[i] + j, *window.at[i][j]);
    }
  }
}

double StagesSearch::least_beyond() const {
  std::vector<std::vector<double>> best(frame_.stages() + 1,
                                        std::vector<double>(frame_.units() + 1, kInfinite));
  best[0][0] = 0;
  for_each_point([&](size_t s, size_t begin, size_t end, const StagePoints& points) {
    if (points.by_way.empty()) return;
    const double least = points.by_way.front().beyond;
    best[s + 1][end] = std::min(best[s + 1][end], std::max(best[s][begin], least));
  });
  return best[frame_.stages()][frame_.units()];
}

std::optional<StagesSearch::Layout> StagesSearch::least_layout(double most, Least least) const {
  const size_t stages = frame_.stages(), units = frame_.units();
  struct From {
    double seconds = kInfinite;
    size_t begin = 0;
    const StagePoint* point = nullptr;
  };
  std::vector<std::vector<From>> best(stages + 1, std::vector<From>(units + 1));
  best[0][0].seconds = 0;
  for_each_point([&](size_t s, size_t begin, size_t end, const StagePoints& points) {
    const bool is_last = s + 1 == stages;
    const auto seconds = [&](const StagePoint& point) {
      if (least == Least::kWay) return point.way;
      return is_last ? point.way + point.beyond : point.late_way();
    };
    const auto& list = least == Least::kLate && !is_last ? points.by_late_way : points.by_way;
    const auto allowed = std::ranges::upper_bound(list, most, {}, &StagePoint::beyond);
    const auto point = std::ranges::min_element(list.begin(), allowed, {}, seconds);
    if (point == allowed) return;
    const double all = best[s][begin].seconds + seconds(*point);
    if (all < best[s + 1][end].seconds) best[s + 1][end] = {all, begin, &*point};
  });
  if (best[stages][units].seconds == kInfinite) return std::nullopt;
  Layout layout;
  size_t end = units;
  for (size_t s = stages; s > 0; --s) {
    const From& from = best[s][end];
    layout.way += from.point->way;
    layout.late += s == stages ? from.point->way + from.point->beyond : from.point->late_way();
    layout.beyond = std::max(layout.beyond, from.point->beyond);
    layout.cut.insert(layout.cut.begin(), static_cast<int64_t>(from.begin));
    layout.stages.insert(layout.stages.begin(), *from.point);
    end = from.begin;
  }
  return layout;
}

double StagesSearch::solve(std::vector<Layout>* layouts) const {
  constexpr double kNarrow = 5e-4;
  constexpr size_t kMostLimits = 40;
  const double low = least_beyond(), most = most_seconds();
  const std::optional<Layout> least = least_layout(kInfinite, Least::kWay);
  if (low == kInfinite || !least) return kInfinite;
  struct Interval {
    double low, high, way, late;  // W(high), L(high)
    double bound() const { return std::max(low + way, late); }
  };
  std::vector<Interval> open;
  // `layout` has W(limit): with less than its own greatest there may be less, and up to the limit there is
  // not.
  const auto add = [&](double from, double limit, const Layout& layout) {
    layouts->push_back(layout);
    double late = kInfinite;
    if (std::optional<Layout> other = least_layout(limit, Least::kLate)) {
      late = other->late;
      layouts->push_back(std::move(*other));
    }
    const double reached = std::clamp(layout.beyond, from, limit);
    if (reached > from) open.push_back({from, reached, layout.way, late});
    if (reached < limit) open.push_back({reached, limit, layout.way, late});
  };
  // Above it no layout is better than the best plan so far, or than this one.
  const double high = most < kInfinite ? most - least->way : least->beyond;
  double closed = least->way + std::max(high, low);
  if (high <= low) {
    layouts->push_back(*least);
    return closed;
  }
  add(low, high, *least);
  for (size_t i = 0; i < kMostLimits && !open.empty(); ++i) {
    const auto at = std::ranges::min_element(open, {}, &Interval::bound);
    const Interval one = *at;
    if (one.bound() >= most || one.high - one.low <= kNarrow * one.bound()) break;
    const double middle = (one.low + one.high) / 2;
    open.erase(at);
    open.push_back({middle, one.high, one.way, one.late});
    const std::optional<Layout> layout = least_layout(middle, Least::kWay);
    if (layout) add(one.low, middle, *layout);  // else there is none in the lower half
  }
  for (const Interval& interval : open) closed = std::min(closed, interval.bound());
  return closed;
}

double StagesSearch::run() {
  const double quick = frame_.quick_bound();
  set_least();
  if (!set_windows()) return std::max(quick, frame_.candidates.best());
  for (size_t s = 0; s < windows_.size(); ++s) {
    if (frame_.candidates.is_time_up()) return quick;
    set_points(s);
  }
  std::vector<Layout> layouts;
  const double passes = solve(&layouts);
  if (passes == kInfinite) return std::max(quick, frame_.candidates.best());
  const double bound = std::max(quick, of_image(frame_.tables, frame_.frame, passes + frame_.bounds.sends));
  if (bound < kNearlyBest * frame_.candidates.best()) propose(std::move(layouts));
  return bound;
}

void StagesSearch::propose(std::vector<Layout> layouts) {
  constexpr size_t kTried = 3;
  constexpr int kRounds = 4;
  for (int round = 0; round < kRounds; ++round) {
    std::ranges::sort(layouts, {}, &Layout::seconds);
    std::vector<Layout> tried;
    bool fits = false;
    for (const Layout& layout : layouts) {
      const auto same = [&](const Layout& other) {
        return other.way == layout.way && other.beyond == layout.beyond;
      };
      if (tried.size() >= kTried || layout.seconds() >= most_seconds()) break;
      if (std::ranges::any_of(tried, same)) continue;
      if (frame_.candidates.is_time_up()) return;
      tried.push_back(layout);
      if (!try_layout(layout, 1)) continue;
      fits = true;
      try_layout(layout, 0);
    }
    if (fits || tried.empty()) return;
    for (size_t s = 0; s < windows_.size(); ++s) set_points(s);
    layouts.clear();
    if (solve(&layouts) == kInfinite) return;
  }
}

bool StagesSearch::try_layout(const Layout& layout, int64_t prefetch) {
  std::vector<size_t> chosen;
  for (size_t s = 0; s < layout.cut.size(); ++s) {
    const auto begin = static_cast<size_t>(layout.cut[s]);
    const auto of_stage = options_.chosen(*layout.stages[s].option, begin, frame_.end_of(layout.cut, s));
    chosen.insert(chosen.end(), of_stage.begin(), of_stage.end());
  }
  const Candidates::Outcome outcome = frame_.try_choices(layout.cut, chosen, prefetch);
  if (outcome.fits) return true;
  for (size_t s = 0; s < budgets_.size(); ++s) {  // what the sums of units leave out
    const double left_out = outcome.memory[s].total() - layout.stages[s].bytes;
    budgets_[s] = std::min(budgets_[s], frame_.question.memory - left_out);
  }
  return false;
}

}  // namespace tessera::planner
