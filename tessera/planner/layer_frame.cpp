// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/layer_frame.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace tessera::planner {
namespace {

/// Is `one` at most as long as `other` in every form?
bool is_at_most(const PassWork& one, const PassWork& other, bool with_messages) {
  if (one.compute > other.compute || one.occupied > other.occupied || one.exposed > other.exposed)
    return false;
  return !with_messages ||
         (one.gathers <= other.gathers && one.sums <= other.sums && one.copies <= other.copies &&
          one.replicas <= other.replicas && one.rows <= other.rows && one.beside <= other.beside &&
          one.stalled <= other.stalled);
}

bool is_at_most(const UnitWork& one, const UnitWork& other, const plan::Span& channel) {
  const plan::UnitMemory &bytes = one.memory, &more = other.memory;
  if (bytes.lasting > more.lasting || bytes.gradients > more.gradients || bytes.kept > more.kept ||
      bytes.passing > more.passing)
    return false;
  if (one.optimizer > other.optimizer) return false;
  if (one.channel == channel && other.channel != channel) return false;
  for (size_t place = 0; place < one.passes.size(); ++place) {
    for (size_t pass = 0; pass < kPassKinds; ++pass) {
      if (!is_at_most(one.passes[place][pass], other.passes[place][pass], one.channel == channel))
        return false;
    }
    // In the first micro-batch as well.
    const double first = one.passes[place][kBackward].compute - one.accumulation,
                 other_first = other.passes[place][kBackward].compute - other.accumulation;
    if (first > other_first) return false;
  }
  return true;
}

}  // namespace

double of_image(const ProfileTables& tables, const Frame& frame, double passes) {
  const Profile& profile = tables.profile;
  const double loaded = profile.data_seconds * static_cast<double>(frame.images * frame.micro_batches);
  return std::max(passes + profile.step_seconds, loaded) / static_cast<double>(frame.batch);
}

// (More than 5 parameters: references that the frame holds.)
LayerFrame::LayerFrame(const ProfileTables& of, const SearchQuestion& asked, const Frame& one,
                       const FrameBounds& its_bounds, ChoiceWorks& choice_works, const BoundForms& of_channel,
                       Candidates& tried)
    : tables(of),
      question(asked),
      frame(one),
      bounds(its_bounds),
      choices(choice_works.choices()),
      alike(choice_works.alike()),
      keys(choice_works.alike().keys()),
      works(choice_works.of(one.images, one.micro_batches > 1)),
      forms(of_channel),
      candidates(tried),
      choice_works_(choice_works),
      groups_(find_groups()) {
  for (ChannelGroup& group : groups_) set_form(&group);
}

std::vector<size_t> LayerFrame::undominated(const std::vector<size_t>& of, const std::vector<size_t>& of_keys,
                                            const plan::Span& channel) const {
  const auto is_worse = [&](size_t choice, size_t than) {
    return std::ranges::all_of(
        of_keys, [&](size_t key) { return is_at_most(works[than][key], works[choice][key], channel); });
  };
  std::vector<size_t> kept;
  for (const size_t choice : of) {
    if (std::ranges::any_of(kept, [&](size_t other) { return is_worse(choice, other); })) continue;
    std::erase_if(kept, [&](size_t other) { return is_worse(other, choice); });
    kept.push_back(choice);
  }
  return kept;
}

std::vector<ChannelGroup> LayerFrame::find_groups() const {
  const std::vector<size_t>& first = alike.first();
  std::vector<size_t> blocks;
  for (size_t key = 0; key < first.size(); ++key)
    if (!is_end(key)) blocks.push_back(key);
  std::map<std::tuple<int64_t, bool, plan::Span>, std::vector<size_t>> by_layout;
  for (size_t c = 0; c < choices.all.size(); ++c) {
    const bool is_allowed =
        std::ranges::all_of(blocks, [&](size_t key) { return choices.allowed[first[key]][c]; });
    if (!is_allowed) continue;
    const plan::Layout& layout = choices.all[c].layout;
    const plan::Span channel = blocks.empty() ? plan::Span{} : works[c][blocks.front()].channel;
    by_layout[{layout.tensor, layout.adjacent, channel}].push_back(c);
  }
  std::vector<ChannelGroup> groups;
  for (const auto& [layout, of] : by_layout) {
    ChannelGroup& group = groups.emplace_back();
    group.channel = std::get<plan::Span>(layout);
    const std::vector<size_t> kept = undominated(of, blocks, group.channel);
    for (size_t key = 0; key < first.size(); ++key) {
      std::vector<size_t>& allowed = group.choices.emplace_back();
      if (!is_end(key)) {
        allowed = kept;
        continue;
      }
      for (size_t c = 0; c < choices.all.size(); ++c)
        if (choices.allowed[first[key]][c]) allowed.push_back(c);
      allowed = undominated(allowed, {key}, group.channel);
    }
  }
  return groups;
}

/// With one stage, of its whole step. Else of the way of one micro-batch and, as the longest stage is at
/// least as long as their mean, of a share of what it does beyond: Note [Pipelines] in stage_bounds.cpp.
double LayerFrame::seconds(const StepForm& form, const UnitWork& work, UnitPosition place) const {
  StageSum sum;
  add_unit(&sum, work, place, form);
  if (frame.stages == 1) return sum.optimizer + sum.all_passes(frame.micro_batches);
  const auto m = static_cast<double>(frame.micro_batches);
  const auto n = static_cast<double>(std::ranges::max(bounds.forwards_first));
  const double beyond = (m - 1) * sum.passes[kBackward] - sum.accumulation + (m - n) * sum.passes[kForward];
  return sum.way() + beyond / static_cast<double>(frame.stages);
}

std::vector<LayerFrame::Least> LayerFrame::least(const ChannelGroup& group, StageWork* work) const {
  std::vector<double> counts(alike.first().size());
  for (const size_t key : keys) ++counts[key];
  std::vector<Least> least(counts.size(), {kInfinite, kInfinite});
  for (size_t key = 0; key < counts.size(); ++key) {
    const UnitWork* best = nullptr;
    for (const size_t choice : group.choices[key]) {
      const UnitWork& of = works[choice][key];
      const double inside = seconds(group.form_of(of), of, {});
      if (inside < least[key].inside) best = &of;
      least[key].inside = std::min(least[key].inside, inside);
      for (const UnitPosition place : kUnitPositions)
        least[key].anywhere = std::min(least[key].anywhere, seconds(group.form_of(of), of, place));
    }
    if (best != nullptr) work->add(*best, {}, counts[key], best->channel == group.channel);
  }
  return least;
}

/// Forms in turn: Note [Forms in turn] in search_one_stage.cpp.
void LayerFrame::set_form(ChannelGroup* group) const {
  constexpr int kForms = 4;
  StepForm form = StageWork().greatest(forms), best = form;
  double most = -1;
  for (int i = 0; i < kForms; ++i) {
    group->form = form;
    group->silent = form.without_messages();
    StageWork work;
    const double bound = bound_of(least(*group, &work));
    if (bound > most) best = form;
    most = std::max(most, bound);
    form = i == 0 ? work.greatest(forms) : form.mixed(work.greatest(forms), 1.0 / (i + 1));
  }
  group->form = best;
  group->silent = best.without_messages();
}

/// Each stage has two ends; stem and head are two of them.
double LayerFrame::bound_of(const std::vector<Least>& least) const {
  double sum = 0, saved = 0;
  for (const size_t key : keys) {
    if (is_end(key)) {
      sum += least[key].anywhere;
      continue;
    }
    sum += least[key].inside;
    saved = std::max(saved, least[key].inside - least[key].anywhere);
  }
  if (frame.stages > 1) sum -= saved * static_cast<double>(2 * frame.stages - 2);
  return of_image(tables, frame, sum + bounds.sends);
}

double LayerFrame::quick_bound(const ChannelGroup& group) const {
  StageWork work;
  return bound_of(least(group, &work));
}

double LayerFrame::quick_bound() const {
  double bound = kInfinite;
  std::vector<Least> all(alike.first().size(), {kInfinite, kInfinite});
  for (const ChannelGroup& group : groups_) {
    StageWork work;
    const std::vector<Least> of_group = least(group, &work);
    bound = std::min(bound, bound_of(of_group));
    for (size_t key = 0; key < all.size(); ++key) {
      all[key].inside = std::min(all[key].inside, of_group[key].inside);
      all[key].anywhere = std::min(all[key].anywhere, of_group[key].anywhere);
    }
  }
  return frame.stages == 1 || bound == kInfinite ? bound : bound_of(all);
}

Candidates::Outcome LayerFrame::try_choices(const Cut& cut, const std::vector<size_t>& chosen,
                                            int64_t prefetch) const {
  ProposedPlan candidate{frame, prefetch, cut, {}};
  for (const size_t choice : chosen) candidate.units.push_back(&choices.all[choice]);
  return candidates.try_plan(candidate);
}

}  // namespace tessera::planner
