// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/search_all.h"

#include <algorithm>
#include <set>

namespace tessera::planner {
namespace {

bool on_one_channel(const LayerFrame& frame) {
  std::set<plan::Span> spans;
  for (size_t c = 0; c < frame.works.size(); ++c) {
    for (size_t i = 0; i < frame.units(); ++i) {
      const plan::Span& channel = frame.works[c][frame.keys[i]].channel;
      if (frame.choices.allowed[i][c] && channel.size > 1) spans.insert(channel);
    }
  }
  return spans.size() <= 1;
}

/// Over the units between stem and head.
PassWindows windows_of(const LayerFrame& frame) {
  PassWindows least = {kInfinite, kInfinite};
  for (size_t c = 0; c < frame.works.size(); ++c) {
    for (size_t i = 1; i + 1 < frame.units(); ++i) {
      if (!frame.choices.allowed[i][c]) continue;
      const auto& passes = frame.works[c][frame.keys[i]].at({});
      least.forward = std::min(least.forward, passes[kForward].compute + passes[kForward].occupied);
      least.backward = std::min(least.backward, passes[kBackward].compute + passes[kBackward].occupied);
    }
  }
  return least;
}

}  // namespace

AllPlans::AllPlans(const LayerFrame& frame)
    : frame_(frame),
      step_forms_(step_forms(on_one_channel(frame)
                                 ? forms_of_one_channel(frame.tables.profile)
                                 : forms_of_channels(frame.tables.profile, windows_of(frame)))) {}

double AllPlans::count() const {
  double plans = 1;
  for (size_t i = 0; i < frame_.units(); ++i)
    plans *= static_cast<double>(std::ranges::count(frame_.choices.allowed[i], true));
  for (int64_t s = 1; s < frame_.frame.stages; ++s)
    plans *= static_cast<double>(std::ssize(frame_.keys) - s) / static_cast<double>(s);
  return plans;
}

double AllPlans::quick_bound() const {
  const auto stages = static_cast<double>(frame_.frame.stages);
  const auto m = static_cast<double>(frame_.frame.micro_batches);
  const auto n = static_cast<double>(std::ranges::max(frame_.bounds.forwards_first));
  double most = 0;
  for (const StepForm& form : step_forms_) {
    double sum = 0;
    for (size_t i = 0; i < frame_.units(); ++i) {
      double least = kInfinite;
      for (size_t c = 0; c < frame_.works.size(); ++c) {
        if (!is_allowed(i, c)) continue;
        for (const UnitPosition place : kUnitPositions) {
          StageSum unit;
          add_unit(&unit, frame_.works[c][frame_.keys[i]], place, form);
          const double beyond =
              (m - 1) * unit.passes[kBackward] - unit.accumulation + (m - n) * unit.passes[kForward];
          least = std::min(least, stages == 1 ? unit.optimizer + unit.all_passes(frame_.frame.micro_batches)
                                              : unit.way() + beyond / stages);
        }
      }
      sum += least;
    }
    most = std::max(most, sum);
  }
  return of_image(frame_.tables, frame_.frame, most + frame_.bounds.sends);
}

double AllPlans::run() {
  LayerFrame::Cut cut(frame_.stages());
  for (size_t s = 0; s < cut.size(); ++s) cut[s] = static_cast<int64_t>(s);
  for (;;) {
    for (const int64_t prefetch : kPrefetches) try_cut(cut, prefetch);
    if (frame_.candidates.is_time_up()) return quick_bound();
    size_t s = cut.size();
    while (--s > 0 && cut[s] == static_cast<int64_t>(frame_.units() - (cut.size() - s))) {
    }
    if (s == 0) return kInfinite;
    ++cut[s];
    for (; s + 1 < cut.size(); ++s) cut[s + 1] = cut[s] + 1;
  }
}

bool AllPlans::may_be_better(const LayerFrame::Cut& cut, const std::vector<size_t>& chosen) const {
  for (const StepForm& form : step_forms_) {
    std::vector<StageSum> stages(cut.size());
    for (size_t s = 0; s < cut.size(); ++s) {
      const auto begin = static_cast<size_t>(cut[s]);
      const size_t end = frame_.end_of(cut, s);
      for (size_t i = begin; i < end; ++i)
        add_unit(&stages[s], frame_.works[chosen[i]][frame_.keys[i]],
                 unit_position(i, begin, end, frame_.units()), form);
      if (stages[s].bytes(frame_.bounds.waiting_of(s)) > frame_.question.memory) return false;
    }
    if (!frame_.is_open(step_bound(stages, frame_.bounds))) return false;
  }
  return true;
}

void AllPlans::try_cut(const LayerFrame::Cut& cut, int64_t prefetch) {
  const size_t units = frame_.units();
  std::vector<std::vector<size_t>> allowed(units);
  for (size_t i = 0; i < units; ++i) {
    for (size_t c = 0; c < frame_.works.size(); ++c)
      if (is_allowed(i, c)) allowed[i].push_back(c);
  }
  std::vector<size_t> at(units, 0), chosen(units);
  while (!frame_.candidates.is_time_up()) {
    for (size_t i = 0; i < units; ++i) chosen[i] = allowed[i][at[i]];
    if (may_be_better(cut, chosen)) frame_.try_choices(cut, chosen, prefetch);
    size_t i = 0;
    while (i < units && ++at[i] == allowed[i].size()) at[i++] = 0;
    if (i == units) return;
  }
}

}  // namespace tessera::planner
