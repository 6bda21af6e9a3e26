// SPDX-License-Identifier: Apache-2.0
// Note [Forms in turn]: every form bounds the step of every plan, so each front gives a bound: the time of
// its best point. The plan of that point takes at least as long as the greatest of the forms says for its
// passes. Where that is longer, the next front has a mean of the forms so far and those: the steps of the
// subgradient method for the form, mixed of all, whose front gives the highest bound.
#include "tessera/planner/search_one_stage.h"

#include <algorithm>

namespace tessera::planner {
namespace {

constexpr std::array<Order, 3> kOrders = {Order::kAsListed, Order::kReversed, Order::kSpread};

}  // namespace

double OneStage::run() {
  std::vector<std::pair<double, size_t>> by_bound;
  for (size_t i = 0; i < frame_.groups().size(); ++i)
    by_bound.emplace_back(frame_.quick_bound(frame_.groups()[i]), i);
  std::ranges::sort(by_bound);
  double least = kInfinite;
  for (const auto& [bound, i] : by_bound) {
    const bool is_open = bound < kNearlyBest * frame_.candidates.best();
    if (!is_open || frame_.candidates.is_time_up()) return std::min(least, bound);
    least = std::min(least, std::max(bound, try_group(frame_.groups()[i])));
  }
  return least;
}

StageFronts OneStage::fronts(const ChannelGroup& group, const StepForm& form) const {
  const auto seconds = [this, form, silent = form.without_messages(), channel = group.channel](
                           const UnitWork& work, UnitPosition place) {
    StageSum sum;
    add_unit(&sum, work, place, work.channel == channel ? form : silent);
    return sum.optimizer + sum.all_passes(frame_.frame.micro_batches);
  };
  return {frame_.keys,
          group.choices,
          frame_.works,
          frame_.bounds.waiting_of(0),
          frame_.question.memory - reserve_,
          seconds};
}

StageWork OneStage::work_of(const ChannelGroup& group, const std::vector<size_t>& chosen) const {
  const StageUnits units{frame_.works, frame_.keys, 0, frame_.units(), group.channel};
  StageWork work;
  for (size_t i = 0; i < frame_.units(); ++i) units.add(&work, i, i + 1, chosen[i]);
  return work;
}

double OneStage::try_group(const ChannelGroup& group) {
  constexpr int kForms = 8;
  constexpr double kClose = 5e-4;
  reserve_ = plan::kProgramGrowth;
  double largest = 0;
  for (size_t key = 0; key < group.choices.size(); ++key) {
    double least = kInfinite;
    for (const size_t choice : group.choices[key])
      least = std::min(least, frame_.works[choice][key].memory.passing);
    largest = std::max(largest, least);
  }
  reserve_ += largest;
  StepForm form = StageWork().greatest(frame_.forms);
  double most = 0;
  std::vector<std::vector<size_t>> seen;
  for (int i = 0; i < kForms && !frame_.candidates.is_time_up(); ++i) {
    StageFronts stage = fronts(group, form);
    const Front& front = stage.of(0, frame_.units());
    const auto best = front.best(static_cast<int64_t>(frame_.question.memory - reserve_));
    if (!best) return kInfinite;
    most = std::max(most, front.points()[*best].time / (1 + StageFronts::kTolerance));
    if (!frame_.is_open(most)) break;
    const std::vector<size_t> chosen = stage.choices_at(0, frame_.units(), *best, Order::kAsListed);
    const StageWork work = work_of(group, chosen);
    const StageSum sum = work.sum(frame_.forms);
    if (std::ranges::find(seen, chosen) == seen.end()) {
      seen.push_back(chosen);
      for (const Order order : kOrders) try_fastest(stage, 1, order);
      try_fastest(stage, 0, Order::kAsListed);
    }
    if (sum.optimizer + sum.all_passes(frame_.frame.micro_batches) <= most * (1 + kClose)) break;
    const StepForm next = work.greatest(frame_.forms);
    form = i == 0 ? next : form.mixed(next, 1.0 / (i + 1));
  }
  return of_image(frame_.tables, frame_.frame, most);
}

void OneStage::try_fastest(StageFronts& stage, int64_t prefetch, Order order) {
  constexpr int kRetries = 8;
  const Front& front = stage.of(0, frame_.units());
  double budget = frame_.question.memory - reserve_;
  std::vector<size_t> last;
  for (int i = 0; i < kRetries && !frame_.candidates.is_time_up(); ++i) {
    const auto best = front.best(static_cast<int64_t>(budget));
    if (!best) return;
    std::vector<size_t> chosen = stage.choices_at(0, frame_.units(), *best, order);
    if (chosen == last) return;
    last = std::move(chosen);
    const Candidates::Outcome outcome = frame_.try_choices({0}, last, prefetch);
    // What the sums of units leave out.
    budget = frame_.question.memory -
             (outcome.memory[0].total() - static_cast<double>(front.points()[*best].memory));
  }
}

}  // namespace tessera::planner
