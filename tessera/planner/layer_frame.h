// SPDX-License-Identifier: Apache-2.0
// One frame of the search, layouts layer by layer: what its parts share. Private to this room.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "tessera/planner/candidates.h"
#include "tessera/planner/stage_bounds.h"

namespace tessera::planner {

/// Seconds of an image that follow from a bound of the passes: with the end of the step and the data.
double of_image(const ProfileTables& tables, const Frame& frame, double passes);

/// Units gathered ahead where units have different layouts: the bounds do not hold for more.
inline constexpr std::array<int64_t, 2> kPrefetches = {1, 0};
/// Plans whose times differ by less count as equally fast.
inline constexpr double kNearlyBest = 1 - 1e-9;

/// Choices that the blocks of a stage may mix: of one tensor layout, with messages on one channel. Without
/// those that are worse than another one in all that a bound or the memory depends on, and as good in none.
struct ChannelGroup {
  plan::Span channel;
  std::vector<std::vector<size_t>> choices;  // by key; stem and head have all of theirs
  StepForm form;                             // the one of a few that bounds the frame's steps best
  const StepForm& form_of(const UnitWork& work) const { return work.channel == channel ? form : silent; }
  StepForm silent;  // `form` for units with messages on other channels
};

class LayerFrame {
 public:
  using Cut = std::vector<int64_t>;  // first unit of each stage

  /// Requires: no interleaved pipeline.
  LayerFrame(const ProfileTables& tables, const SearchQuestion& question, const Frame& frame,
             const FrameBounds& bounds, ChoiceWorks& works, const BoundForms& forms, Candidates& candidates);

  const ProfileTables& tables;
  const SearchQuestion& question;
  const Frame& frame;
  const FrameBounds& bounds;
  const Choices& choices;
  const AlikeUnits& alike;
  const std::vector<size_t>& keys;                  // by unit
  const std::vector<std::vector<UnitWork>>& works;  // by choice and key
  const BoundForms& forms;                          // forms_of_one_layout()
  Candidates& candidates;

  size_t units() const { return keys.size(); }
  size_t stages() const { return static_cast<size_t>(frame.stages); }
  /// The choice of the stem or the head beside a block with `choice`.
  size_t beside(size_t choice) const { return choice_works_.choice_of(0, choice); }
  bool is_end(size_t key) const { return alike.is_end(key); }
  const std::vector<ChannelGroup>& groups() const { return groups_; }

  /// Seconds of an image that no plan can be below whose stages have blocks of one group each. Fast.
  double quick_bound() const;
  /// The same of one group, if the pipeline has one stage.
  double quick_bound(const ChannelGroup& group) const;

  /// Could a plan with this bound of its passes be better than the best?
  bool is_open(double passes) const {
    return of_image(tables, frame, passes) < kNearlyBest * candidates.best();
  }
  size_t end_of(const Cut& cut, size_t stage) const {
    return stage + 1 < cut.size() ? static_cast<size_t>(cut[stage + 1]) : units();
  }
  /// `chosen`: by unit.
  Candidates::Outcome try_choices(const Cut& cut, const std::vector<size_t>& chosen, int64_t prefetch) const;

 private:
  std::vector<size_t> undominated(const std::vector<size_t>& of, const std::vector<size_t>& keys,
                                  const plan::Span& channel) const;
  double seconds(const StepForm& form, const UnitWork& work, UnitPosition place) const;
  struct Least {
    double inside = 0, anywhere = 0;  // between other units of a stage; at any place
  };
  std::vector<ChannelGroup> find_groups() const;
  /// By key. `works`: what the units between others add where each has the least.
  std::vector<Least> least(const ChannelGroup& group, StageWork* work) const;
  void set_form(ChannelGroup* group) const;
  double bound_of(const std::vector<Least>& least) const;

  const ChoiceWorks& choice_works_;
  std::vector<ChannelGroup> groups_;
};

}  // namespace tessera::planner
