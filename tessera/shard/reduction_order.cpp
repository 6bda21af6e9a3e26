// SPDX-License-Identifier: Apache-2.0
#include "tessera/shard/reduction_order.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace tessera::shard {

void ReductionOrder::add_unit() {
  order_.insert(order_.begin(), places_.size());  // backward goes through the units in reverse
  places_.push_back(kAtTheEnd);
}

void ReductionOrder::guess(std::vector<std::string> events, std::vector<size_t> places) {
  expected_ = std::move(events);
  places_ = std::move(places);
  std::stable_sort(order_.begin(), order_.end(), [&](size_t a, size_t b) { return places_[a] < places_[b]; });
}

void ReductionOrder::begin() {
  events_.clear();
  passed_ = next_ = 0;
  complete_.assign(units(), false);
  started_.assign(units(), false);
  arrivals_.assign(units(), {});
  gradients_ = 0;
}

/// How many of `events` have passed after `name`, of which `passed` had before it.
size_t ReductionOrder::follow(const std::vector<std::string>& events, size_t passed,
                              const std::string& name) const {
  const auto found = std::find(events.begin() + static_cast<ptrdiff_t>(passed), events.end(), name);
  return found == events.end() ? passed : static_cast<size_t>(found - events.begin()) + 1;
}

void ReductionOrder::start_next() {
  const size_t unit = order_[next_++];
  started_[unit] = true;
  start_(unit);
}

void ReductionOrder::event(const std::string& name) {
  const size_t now = follow(expected_, passed_, name);
  // Also those whose interval lies between events that this pass leaves out.
  while (next_ < order_.size() && (places_[order_[next_]] <= passed_ || places_[order_[next_]] < now)) {
    start_next();
  }
  passed_ = now;
  events_.push_back(name);
}

void ReductionOrder::start_due() {
  while (next_ < order_.size() && complete_[order_[next_]] && places_[order_[next_]] <= passed_) start_next();
}

void ReductionOrder::start_rest() {
  while (next_ < order_.size()) start_next();
}

void ReductionOrder::arrived(size_t unit) {
  arrivals_[unit] = {static_cast<int64_t>(events_.size()), gradients_++};
}

bool ReductionOrder::should_learn(const std::vector<bool>& used, bool late) const {
  if (!learned_ || late) return true;
  for (size_t unit = 0; unit < units(); ++unit) {
    if (used[unit] && places_[unit] == kAtTheEnd) return true;
  }
  return false;
}

void ReductionOrder::learn(const std::vector<std::vector<UnitArrival>>& of_ranks) {
  // Where the former places lie among this pass's events.
  std::vector<size_t> now_at(expected_.size() + 1, 0);
  for (size_t i = 0; i < expected_.size(); ++i) now_at[i + 1] = follow(events_, now_at[i], expected_[i]);

  std::vector<std::tuple<size_t, int64_t, size_t>> sorted;  // place, turn, position in the former order
  int64_t turn = 0;  // a unit without gradients stays behind the one that it was behind
  for (size_t position = 0; position < units(); ++position) {
    const size_t unit = order_[position];
    // A former guess says nothing, what was learned from other steps does: ranks may need it again.
    size_t place = learned_ && places_[unit] != kAtTheEnd ? now_at[places_[unit]] : kAtTheEnd;
    bool used = false;
    for (const auto& arrivals : of_ranks) {
      const UnitArrival& arrival = arrivals[unit];
      if (arrival.events < 0) continue;
      const auto came = static_cast<size_t>(arrival.events);
      place = place == kAtTheEnd ? came : std::max(place, came);
      turn = used ? std::max(turn, arrival.turn) : arrival.turn;
      used = true;
    }
    places_[unit] = place;
    sorted.emplace_back(place, turn, position);
  }
  std::sort(sorted.begin(), sorted.end());
  std::vector<size_t> order;
  for (const auto& [place, turn, position] : sorted) order.push_back(order_[position]);
  order_ = std::move(order);
  expected_ = events_;
  learned_ = true;
}

}  // namespace tessera::shard
