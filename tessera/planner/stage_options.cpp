// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/stage_options.h"

#include <algorithm>
#include <functional>

namespace tessera::planner {

std::vector<size_t> runs_of(const std::vector<size_t>& keys, size_t begin, size_t end) {
  std::vector<size_t> runs;
  for (size_t i = begin; i < end; ++i) {
    if (i == begin || keys[i] != keys[i - 1]) runs.insert(runs.end(), {keys[i], 0});
    ++runs.back();
  }
  return runs;
}

const std::vector<StageOption>& StageOptions::of(size_t group, size_t begin, size_t end) {
  const auto [found, is_new] = options_.try_emplace({group, runs_of(frame_.keys, begin, end)});
  if (is_new) found->second = make(frame_.groups()[group], begin, end);
  return found->second;
}

std::vector<StageOption> StageOptions::make(const ChannelGroup& group, size_t begin, size_t end) const {
  const size_t from = std::max<size_t>(begin, 1), to = std::min(end, frame_.units() - 1);
  const size_t blocks = to > from ? to - from : 0;
  const StageUnits stage{frame_.works, frame_.keys, begin, end, group.channel};
  const std::vector<size_t>& choices = group.choices[frame_.keys[from]];
  // By choice and number of blocks that have it: the first ones with the stem, the others with the head.
  std::vector<std::vector<StageWork>> firsts, others;
  for (const size_t choice : choices) {
    std::vector<StageWork>& first = firsts.emplace_back(blocks + 1);
    std::vector<StageWork>& other = others.emplace_back(blocks + 1);
    if (begin == 0) stage.add(&first[0], 0, 1, frame_.beside(choice));
    if (end == frame_.units()) stage.add(&other[0], end - 1, end, frame_.beside(choice));
    for (size_t i = 0; i < blocks; ++i) {
      first[i + 1] = first[i];
      stage.add(&first[i + 1], from + i, from + i + 1, choice);
      other[i + 1] = other[i];
      stage.add(&other[i + 1], to - i - 1, to - i, choice);
    }
  }
  std::vector<StageOption> options;
  for (size_t first = 0; first < choices.size(); ++first) {
    for (size_t second = 0; second < choices.size(); ++second) {
      const size_t least = first == second ? blocks : 1, most = first == second ? blocks + 1 : blocks;
      for (size_t count = least; count < most; ++count) {
        StageWork work = firsts[first][count];
        work += others[second][blocks - count];
        options.push_back({choices[first], choices[second], count, work.sum(frame_.forms)});
      }
    }
  }
  return options;
}

// (More than 5 parameters: a stage by its numbers, and two limits.)
void StageOptions::add_points(size_t group, size_t stage, size_t begin, size_t end, double budget,
                              double most, std::vector<StagePoint>* points) {
  for (const StageOption& option : of(group, begin, end)) {
    const double bytes = option.sum.bytes(frame_.bounds.waiting_of(stage));
    if (bytes > budget) continue;
    const double delay = delay_of(option.sum, stage),
                 beyond = beyond_one_pass(option.sum, frame_.bounds, stage);
    StagePoint point{option.sum.way(), std::max(beyond, 0.0), delay, bytes, &option};
    if (stage == 0) {
      point.way += option.sum.optimizer + delay;
      point.beyond = std::max(beyond - delay, 0.0);
      point.delay = 0;
    }
    if (point.way + point.beyond <= most) points->push_back(point);
  }
}

namespace {

template <typename Seconds>
std::vector<StagePoint> undominated_by(std::vector<StagePoint> points, Seconds seconds) {
  std::ranges::sort(points, {}, [&](const StagePoint& point) {
    return std::pair(point.beyond, std::invoke(seconds, point));
  });
  std::vector<StagePoint> kept;
  for (const StagePoint& point : points)
    if (kept.empty() || std::invoke(seconds, point) < std::invoke(seconds, kept.back()))
      kept.push_back(point);
  return kept;
}

}  // namespace

StagePoints undominated(std::vector<StagePoint> points) {
  StagePoints kept{.by_way = undominated_by(points, &StagePoint::way), .by_late_way = {}};
  kept.by_late_way = undominated_by(std::move(points), &StagePoint::late_way);
  return kept;
}

std::vector<size_t> StageOptions::chosen(const StageOption& option, size_t begin, size_t end) const {
  std::vector<size_t> chosen;
  size_t blocks = 0;
  for (size_t i = begin; i < end; ++i) {
    if (i == 0 || i + 1 == frame_.units()) {
      chosen.push_back(frame_.beside(i == 0 ? option.first : option.second));
    } else {
      chosen.push_back(blocks++ < option.blocks_of_first ? option.first : option.second);
    }
  }
  return chosen;
}

}  // namespace tessera::planner
