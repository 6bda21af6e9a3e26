// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/search_layers.h"

#include <algorithm>
#include <limits>
#include <set>

#include "tessera/base/error.h"

namespace tessera::planner {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr double kNearlyBest = 1 - 1e-9;
constexpr std::array<Place, 4> kPlaces = {Place{}, {true, false}, {false, true}, {true, true}};

bool on_one_channel(const Choices& choices, const std::vector<std::vector<UnitWork>>& works) {
  std::set<plan::Span> spans;
  for (size_t c = 0; c < works.size(); ++c) {
    for (size_t i = 0; i < works[c].size(); ++i)
      if (choices.allowed[i][c] && works[c][i].channel.size > 1) spans.insert(works[c][i].channel);
  }
  return spans.size() <= 1;
}

/// Over the units between stem and head.
PassWindows windows_of(const Choices& choices, const std::vector<std::vector<UnitWork>>& works) {
  PassWindows least = {kInfinite, kInfinite};
  for (size_t c = 0; c < works.size(); ++c) {
    for (size_t i = 1; i + 1 < works[c].size(); ++i) {
      if (!choices.allowed[i][c]) continue;
      const auto& passes = works[c][i].at({});
      least.forward = std::min(least.forward, passes[kForward].compute + passes[kForward].occupied);
      least.backward = std::min(least.backward, passes[kBackward].compute + passes[kBackward].occupied);
    }
  }
  return least;
}

/// Seconds of a stage of units [begin, end); infinity where nothing fits.
using RangeSeconds = std::function<double(size_t stage, size_t begin, size_t end)>;

/// Cuts `units` into `stages` so that `combine`, folded over the stages' seconds, is least. Returns it and
/// the cut. O(stages units^2).
struct BestCut {
  double seconds = kInfinite;
  std::vector<int64_t> first = {};
};
BestCut best_cut(size_t stages, size_t units, const RangeSeconds& seconds, bool of_sum) {
  std::vector<std::vector<double>> best(stages + 1, std::vector<double>(units + 1, kInfinite));
  std::vector<std::vector<size_t>> from(stages + 1, std::vector<size_t>(units + 1, 0));
  best[0][0] = 0;
  for (size_t s = 0; s < stages; ++s) {
    for (size_t begin = s; begin < units; ++begin) {
      if (best[s][begin] == kInfinite) continue;
      const size_t last = units - (stages - s - 1);
      for (size_t end = s + 1 == stages ? units : begin + 1; end <= last; ++end) {
        const double own = seconds(s, begin, end);
        const double all = of_sum ? best[s][begin] + own : std::max(best[s][begin], own);
        if (all >= best[s + 1][end]) continue;
        best[s + 1][end] = all;
        from[s + 1][end] = begin;
      }
    }
  }
  BestCut cut{best[stages][units]};
  if (cut.seconds == kInfinite) return cut;
  size_t end = units;
  for (size_t s = stages; s > 0; --s) {
    end = from[s][end];
    cut.first.insert(cut.first.begin(), static_cast<int64_t>(end));
  }
  return cut;
}

}  // namespace

double of_image(const ProfileTables& tables, const Frame& frame, double passes) {
  const Profile& profile = tables.profile;
  const double loaded = profile.data_seconds * static_cast<double>(frame.images * frame.micro_batches);
  return std::max(passes + profile.step_seconds, loaded) / static_cast<double>(frame.batch);
}

LayerSearch::LayerSearch(const ProfileTables& tables, const SearchQuestion& question, const Frame& frame,
                         const FrameBounds& bounds, ChoiceWorks& works, Candidates& candidates)
    : tables_(tables),
      question_(question),
      frame_(frame),
      bounds_(bounds),
      choices_(works.choices()),
      works_(works.of(frame.images, frame.micro_batches > 1)),
      candidates_(candidates),
      units_(tables.kinds.size()),
      keys_(unit_keys(tables, question.inputs.frozen_units)),
      one_channel_(on_one_channel(choices_, works_)),
      forms_(one_channel_ ? forms_of_one_channel(tables.profile)
                          : forms_of_channels(tables.profile, windows_of(choices_, works_))),
      step_forms_(step_forms(forms_)) {}

namespace {

StageSum sum_of(const UnitWork& work, Place place, const StepForm& form) {
  StageSum sum;
  add_unit(&sum, work, place, form);
  return sum;
}

}  // namespace

double LayerSearch::once(const StepForm& form, const UnitWork& work, Place place) const {
  return sum_of(work, place, form).way();
}

double LayerSearch::beyond(const StepForm& form, const UnitWork& work, Place place, size_t stage) const {
  return std::max(beyond_one_pass(sum_of(work, place, form), bounds_, stage), 0.0);
}

double LayerSearch::whole_step(const StepForm& form, const UnitWork& work, Place place) const {
  const StageSum sum = sum_of(work, place, form);
  return sum.optimizer + sum.all_passes(frame_.micro_batches);
}

double LayerSearch::estimate(const UnitWork& work, Place place, double forwards, double backwards) const {
  std::array<double, kPassKinds> most = {};
  for (const StepForm& form : step_forms_) {
    const std::array<double, kPassKinds> seconds = form.of(work.at(place));
    for (size_t pass = 0; pass < kPassKinds; ++pass) most[pass] = std::max(most[pass], seconds[pass]);
  }
  return most[kFirstForward] + most[kLastBackward] + work.first_accumulation +
         (forwards - 1) * most[kForward] + (backwards - 1) * (most[kBackward] + work.accumulation) +
         work.optimizer;
}

double LayerSearch::least(size_t unit, const std::function<double(const UnitWork&, Place)>& seconds) const {
  double least = kInfinite;
  for (size_t c = 0; c < works_.size(); ++c) {
    if (!choices_.allowed[unit][c]) continue;
    for (const Place place : kPlaces) least = std::min(least, seconds(works_[c][unit], place));
  }
  return least;
}

double LayerSearch::quick_bound() const {
  const auto m = static_cast<double>(frame_.micro_batches);
  const auto most_first = static_cast<double>(std::ranges::max(bounds_.forwards_first));
  double most = 0;
  for (const StepForm& form : step_forms_) {
    double sum = 0, beyond = 0;
    for (size_t i = 0; i < units_; ++i) {
      if (frame_.stages == 1) {
        sum += least(i, [&](const UnitWork& work, Place place) { return whole_step(form, work, place); });
        continue;
      }
      sum += least(i, [&](const UnitWork& work, Place place) { return once(form, work, place); });
      beyond += least(i, [&](const UnitWork& work, Place place) {
        const std::array<double, kPassKinds> passes = form.of(work.at(place));
        return (m - 1) * passes[kBackward] + (m - most_first) * passes[kForward];
      });
    }
    most = std::max(most, sum + beyond / static_cast<double>(frame_.stages));
  }
  return of_image(tables_, frame_, most + bounds_.sends);
}

double LayerSearch::run() { return plans() <= question_.all_plans ? try_all() : try_fronts(); }

// ---- every plan

double LayerSearch::plans() const {
  double plans = 1;
  for (size_t i = 0; i < units_; ++i)
    plans *= static_cast<double>(std::ranges::count(choices_.allowed[i], true));
  for (int64_t s = 1; s < frame_.stages; ++s)
    plans *= static_cast<double>(std::ssize(keys_) - s) / static_cast<double>(s);
  return plans;
}

double LayerSearch::try_all() {
  Cut cut(static_cast<size_t>(frame_.stages));
  for (size_t s = 0; s < cut.size(); ++s) cut[s] = static_cast<int64_t>(s);
  for (;;) {
    for (const int64_t prefetch : kPrefetches) try_all_of_cut(cut, prefetch);
    if (candidates_.is_time_up()) return quick_bound();
    size_t s = cut.size();
    while (--s > 0 && cut[s] == static_cast<int64_t>(units_ - (cut.size() - s))) {
    }
    if (s == 0) return kInfinite;
    ++cut[s];
    for (; s + 1 < cut.size(); ++s) cut[s + 1] = cut[s] + 1;
  }
}

bool LayerSearch::may_be_better(const Cut& cut, const std::vector<size_t>& choices) const {
  for (const StepForm& form : step_forms_) {
    std::vector<StageSum> stages(cut.size());
    for (size_t s = 0; s < cut.size(); ++s) {
      const auto begin = static_cast<size_t>(cut[s]);
      for (size_t i = begin; i < end_of(cut, s); ++i) {
        const UnitWork& work = works_[choices[i]][i];
        add_unit(&stages[s], work, {i == begin, i + 1 == end_of(cut, s)}, form);
      }
      const plan::UnitMemory& memory = stages[s].memory;
      if (memory.lasting + static_cast<double>(bounds_.under_way[s]) * memory.kept > question_.memory)
        return false;
    }
    if (of_image(tables_, frame_, step_bound(stages, bounds_)) >= kNearlyBest * candidates_.best())
      return false;
  }
  return true;
}

void LayerSearch::try_all_of_cut(const Cut& cut, int64_t prefetch) {
  std::vector<std::vector<size_t>> allowed(units_);
  for (size_t i = 0; i < units_; ++i) {
    for (size_t c = 0; c < works_.size(); ++c)
      if (choices_.allowed[i][c]) allowed[i].push_back(c);
  }
  std::vector<size_t> at(units_, 0), choices(units_);
  while (!candidates_.is_time_up()) {
    for (size_t i = 0; i < units_; ++i) choices[i] = allowed[i][at[i]];
    if (may_be_better(cut, choices)) try_choices(cut, choices, prefetch);
    size_t i = 0;
    while (i < units_ && ++at[i] == allowed[i].size()) at[i++] = 0;
    if (i == units_) return;
  }
}

Candidates::Outcome LayerSearch::try_choices(const Cut& cut, const std::vector<size_t>& choices,
                                             int64_t prefetch) {
  ProposedPlan candidate{frame_, prefetch, cut, {}};
  for (const size_t choice : choices) candidate.units.push_back(&choices_.all[choice]);
  return candidates_.try_plan(candidate);
}

// ---- plans of fronts

std::vector<StageFronts> LayerSearch::fronts(
    const std::function<double(const UnitWork&, Place, size_t)>& seconds) const {
  std::vector<StageFronts> stages;
  for (size_t s = 0; s < static_cast<size_t>(frame_.stages); ++s) {
    stages.emplace_back(keys_, choices_, works_, bounds_.under_way[s], question_.memory,
                        [seconds, s](const UnitWork& work, Place place) { return seconds(work, place, s); });
  }
  return stages;
}

double LayerSearch::try_fronts() {
  const double quick = quick_bound();
  if (frame_.stages == 1) return std::max(quick, try_one_stage());
  const double bound = std::max(quick, of_image(tables_, frame_, bound_of_stages()));
  if (bound >= kNearlyBest * candidates_.best()) return bound;
  const auto m = static_cast<double>(frame_.micro_batches);
  proposals_ =
      fronts([this, m](const UnitWork& work, Place place, size_t) { return estimate(work, place, m, m); });
  BestCut best;
  for (const Cut& cut : promising_cuts()) {
    double seconds = try_cut(cut, 1, Order::kAsListed);
    if (seconds == kInfinite) seconds = try_cut(cut, 0, Order::kAsListed);  // it needs less memory
    if (seconds < best.seconds) best = {seconds, cut};
  }
  if (!best.first.empty() && best.seconds <= 1.1 * candidates_.best()) improve(best.first, best.seconds);
  return bound;
}

/// Bounds and proposals come from the same fronts: of each form, and of mixtures, which bound plans of which
/// some units wait for messages and others for computation.
double LayerSearch::try_one_stage() {
  const auto m = static_cast<double>(frame_.micro_batches);
  double most = 0;
  for (const StepForm& form : step_forms_) {
    auto stage =
        fronts([&](const UnitWork& work, Place place, size_t) { return whole_step(form, work, place); });
    const Front& front = stage[0].of(0, units_);
    const auto best = front.best(static_cast<int64_t>(question_.memory));
    if (!best) return kInfinite;
    most = std::max(most, front.points()[*best].time / (1 + StageFronts::kTolerance));
    if (of_image(tables_, frame_, most) >= kNearlyBest * candidates_.best()) break;
    proposals_ = std::move(stage);
    for (const Order order : {Order::kAsListed, Order::kReversed, Order::kSpread}) try_cut({0}, 1, order);
  }
  const double bound = of_image(tables_, frame_, most);
  if (bound >= kNearlyBest * candidates_.best()) return bound;
  proposals_ =
      fronts([this, m](const UnitWork& work, Place place, size_t) { return estimate(work, place, m, m); });
  for (const int64_t prefetch : kPrefetches) {
    for (const Order order : {Order::kAsListed, Order::kReversed, Order::kSpread})
      try_cut({0}, prefetch, order);
  }
  return bound;
}

double LayerSearch::bound_of_stages() {
  // Of longer stages than this, what the first units need, and the least that the others do.
  const size_t longest = 2 * units_ / static_cast<size_t>(frame_.stages) + 3;
  const auto of = [&](std::vector<StageFronts>& stages, const std::vector<double>& least_before) {
    return [&](size_t s, size_t begin, size_t end) {
      const size_t first_end = std::min(end, begin + longest);
      const Front& front = stages[s].of(begin, first_end);
      const auto best = front.best(static_cast<int64_t>(question_.memory));
      if (!best) return kInfinite;
      return front.points()[*best].time / (1 + StageFronts::kTolerance) + least_before[end] -
             least_before[first_end];
    };
  };
  double most = 0;
  const std::vector<StepForm> forms = {
      step_forms_.front(), {forms_.forward[1], forms_.backward[1]}, {forms_.forward[1], forms_.backward[2]}};
  for (const StepForm& form : forms) {
    const auto stages = static_cast<size_t>(frame_.stages);
    std::vector<double> least_before(units_ + 1, 0), nothing(units_ + 1, 0);
    for (size_t i = 0; i < units_; ++i) {
      least_before[i + 1] = least_before[i] + least(i, [&](const UnitWork& work, Place place) {
                              return once(form, work, place);
                            });
    }
    auto sums = fronts([&](const UnitWork& work, Place place, size_t s) {
      return once(form, work, place) + (s == 0 ? work.optimizer : 0);
    });
    auto beyonds =
        fronts([&](const UnitWork& work, Place place, size_t s) { return beyond(form, work, place, s); });
    const double sum = best_cut(stages, units_, of(sums, least_before), true).seconds;
    if (sum == kInfinite) return kInfinite;
    most = std::max(most, sum + best_cut(stages, units_, of(beyonds, nothing), false).seconds);
    // The longest stage is at least as long as their mean: so both terms are of the same layouts.
    auto means = fronts([&](const UnitWork& work, Place place, size_t s) {
      return once(form, work, place) + (s == 0 ? work.optimizer : 0) +
             beyond(form, work, place, s) / static_cast<double>(stages);
    });
    most = std::max(most, best_cut(stages, units_, of(means, least_before), true).seconds);
    if (of_image(tables_, frame_, most + bounds_.sends) >= kNearlyBest * candidates_.best()) break;
  }
  return most + bounds_.sends;
}

std::vector<LayerSearch::Cut> LayerSearch::promising_cuts() {
  if (frame_.stages == 1) return {{0}};
  constexpr std::array<double, 4> kAboveLeast = {1.0, 1.01, 1.03, 1.1};
  const size_t stages = proposals_.size(), longest = 2 * units_ / stages + 3;
  const RangeSeconds seconds = [&](size_t s, size_t begin, size_t end) {
    if (end - begin > longest) return kInfinite;
    const Front& front = proposals_[s].of(begin, end);
    const auto best = front.best(static_cast<int64_t>(question_.memory));
    return best ? front.points()[*best].time : kInfinite;
  };
  const BestCut even = best_cut(stages, units_, seconds, false);
  std::vector<Cut> cuts;
  for (const double above : kAboveLeast) {
    const BestCut cut = best_cut(
        stages, units_,
        [&](size_t s, size_t begin, size_t end) {
          const double own = seconds(s, begin, end);
          return own <= even.seconds * above ? own : kInfinite;
        },
        true);
    if (!cut.first.empty() && std::ranges::find(cuts, cut.first) == cuts.end()) cuts.push_back(cut.first);
  }
  return cuts;
}

std::optional<std::vector<size_t>> LayerSearch::choices_within(const Cut& cut,
                                                               const std::vector<double>& budgets,
                                                               Order order, std::vector<double>* bytes) {
  std::vector<size_t> choices;
  bytes->clear();
  for (size_t s = 0; s < cut.size(); ++s) {
    const auto begin = static_cast<size_t>(cut[s]);
    const Front& front = proposals_[s].of(begin, end_of(cut, s));
    if (front.points().empty()) return std::nullopt;
    const size_t best = front.best(static_cast<int64_t>(budgets[s])).value_or(0);  // 0: the least memory
    const std::vector<size_t> of_stage = proposals_[s].choices_at(begin, end_of(cut, s), best, order);
    choices.insert(choices.end(), of_stage.begin(), of_stage.end());
    bytes->push_back(static_cast<double>(front.points()[best].memory));
  }
  return choices;
}

double LayerSearch::try_cut(const Cut& cut, int64_t prefetch, Order order) {
  constexpr int kRetries = 8;
  double best = kInfinite;
  std::vector<double> budgets(cut.size(), question_.memory), bytes;
  std::vector<size_t> last;
  for (int i = 0; i < kRetries && !candidates_.is_time_up(); ++i) {
    const auto choices = choices_within(cut, budgets, order, &bytes);
    if (!choices || *choices == last) break;
    last = *choices;
    const Candidates::Outcome outcome = try_choices(cut, *choices, prefetch);
    if (outcome.fits) best = std::min(best, outcome.seconds_per_image);
    for (size_t s = 0; s < cut.size(); ++s)  // what the sums of units leave out
      budgets[s] = question_.memory - (outcome.memory[s].total() - bytes[s]);
  }
  return best;
}

/// Moves units between neighbouring stages as long as that helps.
void LayerSearch::improve(Cut cut, double seconds) {
  for (const int64_t prefetch : kPrefetches) {
    for (const Order order : {Order::kAsListed, Order::kReversed, Order::kSpread})
      seconds = std::min(seconds, try_cut(cut, prefetch, order));
  }
  for (bool improved = true; improved && !candidates_.is_time_up();) {
    improved = false;
    for (size_t s = 1; s < cut.size() && !candidates_.is_time_up(); ++s) {
      for (const int64_t step : {-1, 1}) {
        Cut moved = cut;
        moved[s] += step;
        if (moved[s] <= moved[s - 1] || static_cast<size_t>(moved[s]) >= end_of(moved, s)) continue;
        const double found = try_cut(moved, 1, Order::kAsListed);
        if (found >= kNearlyBest * seconds) continue;
        seconds = found;
        cut = std::move(moved);
        improved = true;
      }
    }
  }
}

}  // namespace tessera::planner
