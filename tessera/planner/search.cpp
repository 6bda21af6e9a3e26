// SPDX-License-Identifier: Apache-2.0
// Note [How the search goes]: first the plans whose blocks all have one layout, in the order of their lower
// bounds, until a bound is no better than the best simulated step. Then frames (stages, micro-batches, order
// of passes) whose bound over all layouts of units is better than that, in the order of these bounds:
// search_all.h, search_one_stage.h, search_stages.h. What is left gives the lower bound of the answer.
#include "tessera/planner/search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <tuple>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/planner/candidates.h"
#include "tessera/planner/layer_frame.h"
#include "tessera/planner/search_all.h"
#include "tessera/planner/search_one_stage.h"
#include "tessera/planner/search_stages.h"
#include "tessera/planner/stage_bounds.h"

namespace tessera::planner {
namespace {

/// Plans of one frame with one layout for all blocks.
struct Uniform {
  double bound = 0;  // seconds of an image
  size_t frame = 0, choice = 0;
  double memory = 0;  // bytes of a rank, at least
};

class Search {
 public:
  Search(const ProfileTables& tables, const SearchQuestion& question)
      : tables_(tables),
        question_(question),
        candidates_(tables, question),
        frames_(frames_of(tables, question)),
        units_(tables.kinds.size()),
        alike_(tables, question.inputs),
        uniform_forms_(forms_of_one_channel(tables.profile)),
        layer_forms_(forms_of_one_layout(tables.profile)) {
    if (frames_.empty()) {
      user_error({.where = "planner.search",
                  .problem = concat("no number of stages and micro-batches fits ", question.ranks,
                                    " ranks and a batch of ", question.batches.front(), " images"),
                  .expected =
                      "a batch that agrees with train.accumulation and train.batch_per_rank, and with "
                      "BatchNorm has an image for each rank",
                  .hint = "change train.batch, or remove the other two"});
    }
    bound_frames();
  }

  SearchResult run() {
    std::vector<Uniform> uniform;
    double open = std::numeric_limits<double>::infinity();
    do {
      std::vector<Uniform> more = next_uniform();
      std::ranges::sort(more, {}, &Uniform::bound);
      open = std::min(open, try_uniform(more));
      uniform.insert(uniform.end(), more.begin(), more.end());
    } while (bounded_ < frames_.size() && (candidates_.kept() == 0 || !candidates_.is_time_up()));
    if (bounded_ < frames_.size()) open = 0;  // nothing is known of the others
    if (question_.layer_by_layer) open = std::min(open, try_layers());
    if (candidates_.best() == std::numeric_limits<double>::infinity()) try_smallest(std::move(uniform));
    const bool timed_out = candidates_.is_time_up();
    SearchResult result = candidates_.take();
    result.timed_out = timed_out;
    if (!result.best.empty()) result.lower_bound = std::min(open, result.best.front().seconds_per_image());
    result.restrictions = restrictions_of(tables_, question_);
    if (!lacks_.empty()) result.restrictions.push_back(concat("no pipelines: ", lacks_));
    return result;
  }

 private:
  /// Pipelines whose messages the profile does not have are left out.
  void bound_frames() {
    std::vector<Frame> known;
    for (const Frame& frame : frames_) {
      try {
        bounds_.push_back(frame_bounds(tables_, question_, frame));
        known.push_back(frame);
      } catch (const UserError& error) {
        if (frame.stages == 1) throw;
        lacks_ = error.what();
      }
    }
    if (known.empty()) throw UserError(lacks_);
    frames_ = std::move(known);
  }

  ChoiceWorks& works_of(int64_t stages) {
    std::unique_ptr<ChoiceWorks>& works = works_[stages];
    if (!works) works = std::make_unique<ChoiceWorks>(tables_, alike_, question_, stages);
    return *works;
  }

  /// Where virtual stages of about the same FLOPs begin.
  const std::vector<int64_t>& even_cut(int64_t parts) {
    std::vector<int64_t>& cut = even_cuts_[parts];
    if (cut.empty())
      cut = parts == 1 ? std::vector<int64_t>{0} : plan::cut_by_cost(tables_.profile.model, parts);
    return cut;
  }

  /// Sums of every virtual stage.
  std::vector<StageSum> sums_of(ChoiceWorks& works, const Frame& frame, size_t choice) {
    const auto& of = works.of(frame.images, frame.micro_batches > 1);
    const plan::Span channel = channel_of_blocks(works, of, choice);
    const std::vector<int64_t>& cut = even_cut(frame.stages * frame.virtual_stages);
    const std::vector<size_t>& keys = alike_.keys();
    std::vector<StageSum> stages(cut.size());
    for (size_t s = 0; s < cut.size(); ++s) {
      const auto begin = static_cast<size_t>(cut[s]);
      const size_t end = s + 1 < cut.size() ? static_cast<size_t>(cut[s + 1]) : units_;
      const StageUnits units{of, keys, begin, end, channel};
      StageWork sum;
      for (size_t i = begin, behind = begin; i < end; i = behind) {
        while (behind < end && keys[behind] == keys[i]) ++behind;
        units.add(&sum, i, behind, works.choice_of(i, choice));
      }
      stages[s] = sum.sum(uniform_forms_);
    }
    return stages;
  }

  plan::Span channel_of_blocks(const ChoiceWorks& works, const std::vector<std::vector<UnitWork>>& of,
                               size_t choice) const {
    for (size_t i = 1; i + 1 < units_; ++i)
      if (works.choices().allowed[i][choice]) return of[choice][alike_.keys()[i]].channel;
    return {};
  }

  double memory_of(const std::vector<StageSum>& stages, const FrameBounds& frame) const {
    double most = 0;
    const size_t ranks = frame.waiting.size();
    for (size_t s = 0; s < ranks; ++s) {
      StageSum own;
      for (size_t part = 0; s + part * ranks < stages.size(); ++part) {
        const plan::UnitMemory& memory = stages[s + part * ranks].memory;
        own.memory.lasting += frame.waiting[s][part].bytes(memory);
        own.memory.passing = std::max(own.memory.passing, memory.passing);
      }
      most = std::max(most, own.bytes(Waiting{}));
    }
    return most;
  }

  /// Of the frames that are not bounded yet, until a part of the time is over: the rest is for plans.
  std::vector<Uniform> next_uniform() {
    constexpr double kShareOfBounds = 0.5;
    std::vector<Uniform> all;
    for (; bounded_ < frames_.size(); ++bounded_) {
      if (!all.empty() && candidates_.is_time_up(kShareOfBounds)) break;
      const size_t f = bounded_;
      const Frame& frame = frames_[f];
      ChoiceWorks& works = works_of(frame.stages);
      for (size_t c = 0; c < works.choices().all.size(); ++c) {
        if (!is_of_blocks(works.choices(), c)) continue;
        const std::vector<StageSum> stages = sums_of(works, frame, c);
        all.push_back(
            {of_image(tables_, frame, step_bound(stages, bounds_[f])), f, c, memory_of(stages, bounds_[f])});
        candidates_.count_bound();
      }
    }
    return all;
  }

  /// Has some unit between stem and head this choice?
  bool is_of_blocks(const Choices& choices, size_t choice) const {
    for (size_t i = 1; i + 1 < units_; ++i)
      if (choices.allowed[i][choice]) return true;
    return false;
  }

  Candidates::Outcome try_uniform(const Uniform& uniform, int64_t prefetch) {
    const Frame& frame = frames_[uniform.frame];
    const ChoiceWorks& works = works_of(frame.stages);
    ProposedPlan candidate{frame, prefetch, even_cut(frame.stages * frame.virtual_stages), {}};
    for (size_t i = 0; i < units_; ++i)
      candidate.units.push_back(&works.choices().all[works.choice_of(i, uniform.choice)]);
    return candidates_.try_plan(candidate);
  }

  /// The least bound of what was left out for lack of time.
  double try_uniform(const std::vector<Uniform>& by_bound) {
    for (const Uniform& uniform : by_bound) {
      const bool is_slower = uniform.bound >= kNearlyBest * candidates_.best();
      if (is_slower && candidates_.kept() >= question_.at_least) break;
      if (uniform.memory > question_.memory) continue;
      if (candidates_.is_time_up() && candidates_.kept() > 0)
        return is_slower ? std::numeric_limits<double>::infinity() : uniform.bound;
      for (const int64_t prefetch : {1, 2, 0}) try_uniform(uniform, prefetch);
    }
    return std::numeric_limits<double>::infinity();
  }

  LayerFrame layer_frame(size_t f) {
    return {tables_,      question_,  frames_[f], bounds_[f], works_of(frames_[f].stages),
            layer_forms_, candidates_};
  }

  /// Of plans layer by layer.
  double quick_bound(size_t f) {
    const LayerFrame frame = layer_frame(f);
    const AllPlans all(frame);
    return all.count() <= question_.all_plans ? all.quick_bound() : frame.quick_bound();
  }
  double try_frame(size_t f) {
    const LayerFrame frame = layer_frame(f);
    AllPlans all(frame);
    if (all.count() <= question_.all_plans) return all.run();
    return frame.frame.stages == 1
               ? OneStage(frame).run()
               : StagesSearch(
                     frame, options_[{frame.frame.stages, frame.frame.images, frame.frame.micro_batches > 1}])
                     .run();
  }

  double try_layers() {
    std::vector<std::pair<double, size_t>> by_bound;
    for (size_t f = 0; f < bounded_; ++f) {
      if (frames_[f].virtual_stages > 1) continue;
      if (candidates_.is_time_up()) return 0;
      by_bound.emplace_back(quick_bound(f), f);
      candidates_.count_bound();
    }
    std::ranges::sort(by_bound);
    double open = std::numeric_limits<double>::infinity();
    for (const auto& [bound, f] : by_bound) {
      if (bound >= kNearlyBest * candidates_.best()) break;
      if (candidates_.is_time_up()) return std::min(open, bound);
      const double left = try_frame(f);
      open = std::min(open, left);
    }
    return open;
  }

  /// Nothing fits: looks for the plan that needs least.
  void try_smallest(std::vector<Uniform> uniform) {
    constexpr size_t kTried = 200;
    std::ranges::sort(uniform, {}, &Uniform::memory);
    for (size_t i = 0; i < std::min(uniform.size(), kTried) && (i == 0 || !candidates_.is_time_up()); ++i)
      try_uniform(uniform[i], /*prefetch=*/0);
  }

  const ProfileTables& tables_;
  const SearchQuestion& question_;
  Candidates candidates_;
  std::vector<Frame> frames_;
  std::vector<FrameBounds> bounds_;
  size_t bounded_ = 0;  // frames whose plans with one layout have bounds
  std::string lacks_;   // what the profile lacks for pipelines
  size_t units_;
  AlikeUnits alike_;
  BoundForms uniform_forms_;                               // hold for any prefetch
  BoundForms layer_forms_;                                 // for at most 1
  std::map<int64_t, std::unique_ptr<ChoiceWorks>> works_;  // by stages
  std::map<int64_t, std::vector<int64_t>> even_cuts_;
  std::map<std::tuple<int64_t, int64_t, bool>, OptionCache> options_;  // by stages, images and accumulation
};

/// Nothing fits: searches below the least memory that was found, until nothing is found there or the time is
/// up. (Layer by layer a plan can need less than those with one layout for all blocks.)
void find_smaller(const ProfileTables& tables, SearchQuestion question, SearchResult* result) {
  const double seconds = question.seconds;
  question.at_least = 1;
  while (result->seconds < seconds) {
    question.memory = std::nextafter(result->smallest->most_memory(), 0.0);
    question.seconds = seconds - result->seconds;
    SearchResult below = Search(tables, question).run();
    result->seconds += below.seconds;
    result->simulated += below.simulated;
    result->bounded += below.bounded;
    if (below.best.empty()) return;
    result->smallest = *std::ranges::min_element(below.best, {}, &FoundPlan::most_memory);
  }
  result->timed_out = true;
}

}  // namespace

SearchResult search(const Profile& profile, const SearchQuestion& question) {
  TESSERA_CHECK(!question.batches.empty() && question.ranks >= 1, question.ranks, " ranks");
  const ProfileTables tables(profile);
  SearchResult result = Search(tables, question).run();
  if (result.best.empty() && result.smallest) find_smaller(tables, question, &result);
  return result;
}

}  // namespace tessera::planner
