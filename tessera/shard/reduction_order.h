// SPDX-License-Identifier: Apache-2.0
// Where in a backward pass the reduction of each unit starts, the same on every rank even where ranks use
// different parameters. No tensors and no communication.
//
// Note [Places of reductions]: a reduction is a collective, so every rank must start it between the same two
// other collectives and in the same order. Which gradients a backward brings is a rank's own affair. So the
// places do not depend on it: all ranks hold the same list of events (reads of units that are gathered for
// the pass, and collectives of the program such as SyncBatchNorm's) and, for each unit, after how many of
// them its gradients were complete on the slowest rank. In a pass, a unit is reduced in the agreed order, at
// the earliest after that many events and when this rank's gradients are complete, and at the latest right
// before the next event, complete or not. Gradients that come later on some rank are "late": the ranks agree
// on them once, at the end of the step (Reductions::finish). Places are learned from the gradients that came,
// again whenever some were late or a unit without a place was used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tessera::shard {

/// What one rank saw of a unit in one pass.
struct UnitArrival {
  int64_t events = -1;  // that had passed when the unit's last gradient came; -1: none came
  int64_t turn = 0;     // how many gradients had come before its last one, of all units
};

class ReductionOrder {
 public:
  /// `start(unit)`: reduces the unit with the gradients that are there.
  explicit ReductionOrder(std::function<void(size_t)> start) : start_(std::move(start)) {}

  /// Unit number units(): without a place, that is reduced at the end of the pass.
  void add_unit();
  size_t units() const { return places_.size(); }

  bool is_learned() const { return learned_; }
  /// For a pass before anything was learned. `events`: those that are expected. `places`: for each unit after
  /// how many of them it may be reduced, kAtTheEnd where that is unknown. The same on all ranks.
  void guess(std::vector<std::string> events, std::vector<size_t> places);

  void begin();
  /// An event is about to happen: reductions whose place ends here start now, complete or not.
  void event(const std::string& name);
  /// This rank expects no more gradients of the unit. Takes effect with the next start_due().
  void complete(size_t unit) { complete_[unit] = true; }
  /// Starts what is next in the order, complete and at its place.
  void start_due();
  /// The end of the pass: starts all others, in the order.
  void start_rest();
  bool has_started(size_t unit) const { return started_[unit]; }

  /// A gradient of the unit came; counts for arrivals().
  void arrived(size_t unit);
  const std::vector<UnitArrival>& arrivals() const { return arrivals_; }
  /// Does this pass say that the places should be learned again? `used`: which units got a gradient on some
  /// rank; `late`: whether any gradient was late on some rank.
  bool should_learn(const std::vector<bool>& used, bool late) const;
  /// `of_ranks`: arrivals() of every rank, in this pass.
  void learn(const std::vector<std::vector<UnitArrival>>& of_ranks);

  static constexpr size_t kAtTheEnd = static_cast<size_t>(-1);

 private:
  void start_next();
  size_t follow(const std::vector<std::string>& events, size_t passed, const std::string& name) const;

  std::function<void(size_t)> start_;
  bool learned_ = false;
  std::vector<std::string> expected_;  // events of the pass that the places were learned from
  std::vector<size_t> places_;         // by unit: how many of `expected_` must have passed
  std::vector<size_t> order_;          // units, by place

  // In the present pass.
  std::vector<std::string> events_;
  size_t passed_ = 0;  // of `expected_`
  size_t next_ = 0;    // in `order_`
  std::vector<bool> complete_, started_;
  std::vector<UnitArrival> arrivals_;
  int64_t gradients_ = 0;
};

}  // namespace tessera::shard
