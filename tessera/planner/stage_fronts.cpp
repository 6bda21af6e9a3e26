// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/stage_fronts.h"

#include <algorithm>
#include <limits>

#include "tessera/base/error.h"

namespace tessera::planner {

// (More than 5 parameters: references that the fronts hold.)
StageFronts::StageFronts(const std::vector<size_t>& keys, const std::vector<std::vector<size_t>>& choices,
                         const std::vector<std::vector<UnitWork>>& works, const Waiting& waiting,
                         double memory_limit, UnitSeconds seconds)
    : keys_(keys),
      choices_(choices),
      works_(works),
      waiting_(waiting),
      options_{.memory_limit = static_cast<int64_t>(std::min(memory_limit, 1e18)), .tolerance = kTolerance},
      seconds_(std::move(seconds)) {}

std::vector<StageFronts::Run> StageFronts::runs_of(size_t begin, size_t end) const {
  std::vector<Run> runs;
  for (size_t i = begin; i < end; ++i) {
    const UnitPosition place = unit_position(i, begin, end, keys_.size());
    const bool goes_on = !runs.empty() && runs.back().place == UnitPosition{} && place == UnitPosition{} &&
                         keys_[runs.back().begin] == keys_[i];
    if (goes_on) {
      ++runs.back().count;
    } else {
      runs.push_back({i, 1, place});
    }
  }
  return runs;
}

const Front& StageFronts::of_run(const Run& run) {
  const size_t place = run.place.index();
  std::vector<Front>& fronts = fronts_[{keys_[run.begin], place}];
  if (fronts.size() > run.count) return fronts[run.count];
  std::vector<Cost> costs;
  for (const size_t choice : choices(run)) {
    const UnitWork& work = works_[choice][keys_[run.begin]];
    const double bytes = waiting_.bytes(work.memory);
    costs.push_back({static_cast<int64_t>(bytes), seconds_(work, run.place)});
  }
  const auto most = static_cast<int64_t>(std::ranges::count(keys_, keys_[run.begin]));
  fronts = fronts_up_to(place == 0 ? most : 1, costs, options_);
  return fronts[run.count];
}

const Front& StageFronts::of(size_t begin, size_t end) {
  const std::vector<Run> runs = runs_of(begin, end);
  std::vector<std::pair<size_t, size_t>> signature;
  for (const Run& run : runs) signature.emplace_back(keys_[run.begin], run.count);
  const auto [found, is_new] = sums_.try_emplace(std::move(signature));
  if (!is_new) return found->second;
  Front total = of_run(runs.front());
  for (size_t i = 1; i < runs.size(); ++i) total = sum(total, of_run(runs[i]), options_);
  return found->second = std::move(total);
}

namespace {

/// Each choice as often as it is counted: units as far apart as they can be.
std::vector<size_t> spread(std::span<const size_t> choices, std::span<const int32_t> counts, size_t units) {
  std::vector<std::pair<double, size_t>> places;  // the k-th of n lies at (k + 1/2) / n
  for (size_t c = 0; c < choices.size(); ++c) {
    for (int32_t k = 0; k < counts[c]; ++k) places.emplace_back((k + 0.5) / counts[c], choices[c]);
  }
  std::ranges::sort(places);
  std::vector<size_t> all;
  for (size_t i = 0; i < units; ++i) all.push_back(places[i].second);
  return all;
}

}  // namespace

std::vector<size_t> StageFronts::choices_at(size_t begin, size_t end, size_t point, Order order) {
  std::span<const int32_t> counts = of(begin, end).counts(point);
  std::vector<size_t> units;
  for (const Run& run : runs_of(begin, end)) {
    const std::vector<size_t>& choices = this->choices(run);
    std::vector<size_t> of_run;
    if (order == Order::kSpread) {
      of_run = spread(choices, counts.first(choices.size()), run.count);
    } else {
      for (size_t c = 0; c < choices.size(); ++c)
        of_run.insert(of_run.end(), static_cast<size_t>(counts[c]), choices[c]);
      if (order == Order::kReversed) std::ranges::reverse(of_run);
    }
    counts = counts.subspan(choices.size());
    units.insert(units.end(), of_run.begin(), of_run.end());
  }
  return units;
}

}  // namespace tessera::planner
