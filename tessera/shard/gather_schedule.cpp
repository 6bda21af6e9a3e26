// SPDX-License-Identifier: Apache-2.0
#include "tessera/shard/gather_schedule.h"

#include <algorithm>

namespace tessera::shard {
namespace {

bool contains(std::span<const size_t> units, size_t unit) {
  return std::find(units.begin(), units.end(), unit) != units.end();
}

}  // namespace

GatherSchedule::GatherSchedule(Actions actions, int64_t prefetch, int64_t most_in_flight)
    : actions_(std::move(actions)), prefetch_(prefetch), most_in_flight_(most_in_flight) {}

void GatherSchedule::add_unit(bool comes_and_goes) {
  comes_and_goes_.push_back(comes_and_goes);
  there_.push_back(false);
  finished_.push_back(false);
  last_read_.push_back(0);
}

void GatherSchedule::set_staying(size_t unit, bool stays) {
  if (comes_and_goes_[unit] != stays) return;
  comes_and_goes_[unit] = !stays;
  finished_[unit] = false;
  if (!stays) {
    done_with(unit);
    return;
  }
  for (auto& [pass, order] : orders_) std::erase(order, unit);
}

void GatherSchedule::begin(Pass pass) {
  pass_ = pass;
  expected_ = orders_[pass];
  if (expected_.empty() && pass == Pass::kBackward) {
    expected_.assign(orders_[Pass::kForward].rbegin(), orders_[Pass::kForward].rend());
  }
  seen_.clear();
  position_ = 0;
  following_ = false;
  start_staying();
  gather_ahead({});
}

/// The one that was added last, a network's root, is most often read first.
void GatherSchedule::start_staying() {
  for (size_t i = 0; i < units(); ++i) {
    const size_t unit = i == 0 ? units() - 1 : i - 1;
    if (!comes_and_goes_[unit]) start(unit);
  }
}

void GatherSchedule::touch(std::span<const size_t> touched) {
  if (read_last(touched)) return;
  std::vector<size_t> read;
  for (const size_t unit : touched) {
    if (comes_and_goes_[unit]) {
      read.push_back(unit);
    } else if (!finished_[unit]) {
      start(unit);
      actions_.finish(unit);
      finished_[unit] = true;
    }
  }
  if (read.empty() || read_last(read)) return;
  for (const size_t unit : read) {
    if (actions_.reads && (seen_.empty() || seen_.back() != unit)) actions_.reads(unit);
    if (seen_.empty() || seen_.back() != unit) seen_.push_back(unit);
    follow(unit);
    last_read_[unit] = ++clock_;
  }
  release_what_is_done(read);
  make_room(read);
  for (const size_t unit : read) start(unit);
  for (const size_t unit : read) actions_.finish(unit);
  gather_ahead(read);
}

void GatherSchedule::done_with(size_t unit) {
  if (there_[unit] && comes_and_goes_[unit]) release(unit);
}

void GatherSchedule::end() {
  const size_t backward_begins_with = pass_ == Pass::kForward && !seen_.empty() ? seen_.back() : kNever;
  for (size_t unit = 0; unit < units(); ++unit) {
    if (unit != backward_begins_with) done_with(unit);
  }
  if (!seen_.empty()) orders_[pass_] = std::move(seen_);
  seen_.clear();
  expected_.clear();
  pass_ = Pass::kNone;
}

void GatherSchedule::forget() {
  there_.assign(units(), false);
  finish_again();
}

/// Moves on in the expected order if `unit` is ahead there.
void GatherSchedule::follow(size_t unit) {
  const auto from = expected_.begin() + static_cast<ptrdiff_t>(position_);
  const auto found = std::find(from, expected_.end(), unit);
  if (found == expected_.end()) return;
  position_ = static_cast<size_t>(found - expected_.begin());
  following_ = true;
}

/// Where in the expected order a unit is read after the present place.
size_t GatherSchedule::next_use(size_t unit) const {
  const size_t first = following_ ? position_ + 1 : 0;
  for (size_t i = first; i < expected_.size(); ++i) {
    if (expected_[i] == unit) return i;
  }
  return kNever;
}

void GatherSchedule::release_what_is_done(std::span<const size_t> read) {
  if (expected_.empty()) return;
  for (size_t unit = 0; unit < units(); ++unit) {
    if (there_[unit] && !contains(read, unit) && next_use(unit) == kNever) done_with(unit);
  }
}

void GatherSchedule::make_room(std::span<const size_t> read) {
  const auto missing = [&] {
    return std::count_if(read.begin(), read.end(), [&](size_t unit) { return !there_[unit]; });
  };
  while (in_flight() + missing() > most_in_flight_) {
    // The one whose next use is farthest; of those never used again, the one read longest ago.
    size_t victim = kNever;
    for (size_t unit = 0; unit < units(); ++unit) {
      if (!there_[unit] || !comes_and_goes_[unit] || contains(read, unit)) continue;
      const auto rank = [&](size_t u) { return std::pair(next_use(u), ~last_read_[u]); };
      if (victim == kNever || rank(unit) > rank(victim)) victim = unit;
    }
    if (victim == kNever) return;  // one operation reads more units than the limit
    release(victim);
  }
}

void GatherSchedule::gather_ahead(std::span<const size_t> read) {
  std::vector<size_t> ahead;
  for (size_t i = following_ ? position_ + 1 : 0; i < expected_.size(); ++i) {
    if (static_cast<int64_t>(ahead.size()) >= prefetch_) return;
    const size_t unit = expected_[i];
    if (contains(read, unit) || contains(ahead, unit)) continue;
    if (!there_[unit] && in_flight() >= most_in_flight_) return;
    start(unit);
    ahead.push_back(unit);
  }
}

void GatherSchedule::start(size_t unit) {
  if (!there_[unit]) actions_.start(unit);
  there_[unit] = true;
}

void GatherSchedule::release(size_t unit) {
  actions_.release(unit);
  there_[unit] = false;
}

int64_t GatherSchedule::in_flight() const {
  int64_t count = 0;
  for (size_t unit = 0; unit < units(); ++unit) count += there_[unit] && comes_and_goes_[unit] ? 1 : 0;
  return count;
}

}  // namespace tessera::shard
