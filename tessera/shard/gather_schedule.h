// SPDX-License-Identifier: Apache-2.0
// When the units of a network that nobody described are gathered and released: it watches which units are
// read, in what order, and expects the same order next time. Private to the room; no tensors.
//
// Units that stay, once gathered, are all started at the beginning of a pass: which of them a rank reads, and
// when, is its own affair. Of the others every rank must read the same, in the same order.
//
// A pass is a forward or a backward. In the first one of a kind nothing is known: a unit is gathered when it
// is read, and the one that was not read for longest makes room. Later passes follow the order of the last
// one: the next units are gathered ahead, and a unit goes after its last use. A pass that leaves the order
// loses time, never correctness. The same touches give the same actions, so ranks that run the same program
// start the same collectives in the same order.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <vector>

namespace tessera::shard {

/// kGradient: torch::autograd::grad() outside of forward.
enum class Pass { kNone, kForward, kInference, kBackward, kGradient };

class GatherSchedule {
 public:
  /// What is done to unit i. start() and finish() of a unit that is there cost nothing.
  struct Actions {
    std::function<void(size_t)> start;       // begins to gather
    std::function<void(size_t)> finish;      // waits until it is there
    std::function<void(size_t)> release;     // gives its memory back
    std::function<void(size_t)> reads = {};  // another unit that comes and goes is read next; may be null
  };
  GatherSchedule(Actions actions, int64_t prefetch, int64_t most_in_flight);

  /// Unit number units(): `comes_and_goes` false: gathered with the next pass, it stays until forget().
  void add_unit(bool comes_and_goes);
  /// From now on `unit` stays once it is gathered, or comes and goes (again). Between passes.
  void set_staying(size_t unit, bool stays);
  size_t units() const { return comes_and_goes_.size(); }
  bool any_comes_and_goes() const {
    return std::find(comes_and_goes_.begin(), comes_and_goes_.end(), true) != comes_and_goes_.end();
  }

  /// A pass begins: the first units that it is expected to read are gathered ahead. A first backward is
  /// expected to go through the last forward in reverse.
  void begin(Pass pass);
  Pass pass() const { return pass_; }
  /// Are they there, and the one that comes and goes was read last? Then touch() would do nothing.
  bool read_last(std::span<const size_t> read) const {
    return std::all_of(read.begin(), read.end(), [&](size_t unit) {
      if (!comes_and_goes_[unit]) return static_cast<bool>(finished_[unit]);
      return read.size() == 1 && !seen_.empty() && seen_.back() == unit && there_[unit];
    });
  }
  /// These units (ascending, not empty) are read now.
  void touch(std::span<const size_t> read);
  /// Nothing will read this unit again in this pass.
  void done_with(size_t unit);
  /// The pass is over: all units that come and go are released; after kForward not the one read last, since
  /// backward begins with it.
  void end();
  /// The units that come and go in the order in which the last pass of this kind read them.
  const std::vector<size_t>& order(Pass pass) { return orders_[pass]; }
  /// Units that stay call for finish() again before they are read.
  void finish_again() { finished_.assign(units(), false); }
  /// All gathered memory is gone (the owner released it itself).
  void forget();

 private:
  static constexpr size_t kNever = static_cast<size_t>(-1);

  void start_staying();
  void follow(size_t unit);
  size_t next_use(size_t unit) const;
  void release_what_is_done(std::span<const size_t> read);
  void make_room(std::span<const size_t> read);
  void gather_ahead(std::span<const size_t> read);
  void start(size_t unit);
  void release(size_t unit);
  int64_t in_flight() const;

  Actions actions_;
  int64_t prefetch_, most_in_flight_;
  std::vector<bool> comes_and_goes_, there_;
  std::vector<bool> finished_;  // of those that stay: there, and waited for
  std::vector<uint64_t> last_read_;
  uint64_t clock_ = 0;

  Pass pass_ = Pass::kNone;
  std::map<Pass, std::vector<size_t>> orders_;  // of the last pass of each kind, no unit twice in a row
  std::vector<size_t> expected_, seen_;
  size_t position_ = 0;     // in expected_, of the unit read last
  bool following_ = false;  // something has been read where it was expected
};

}  // namespace tessera::shard
