// SPDX-License-Identifier: Apache-2.0
#include "tessera/profile/lag.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/base/median.h"

namespace tessera::profile {
namespace {

/// Of the ranks at one meeting.
struct Meeting {
  double slowest = 0, mean = 0;
};

template <class Seconds>
Meeting meeting_of(size_t ranks, const Seconds& seconds_of) {
  Meeting meeting;
  for (size_t rank = 0; rank < ranks; ++rank) {
    const double seconds = seconds_of(rank);
    meeting.slowest = std::max(meeting.slowest, seconds);
    meeting.mean += seconds / static_cast<double>(ranks);
  }
  return meeting;
}

}  // namespace

Lag lag_of(const std::vector<std::vector<std::vector<UnitPass>>>& of_ranks) {
  const size_t ranks = of_ranks.size();
  if (ranks < 2 || of_ranks.front().empty()) return {};
  std::vector<double> of_units, of_micro_batches;
  for (size_t k = 0; k < of_ranks.front().size(); ++k) {
    double slowest_units = 0;
    for (size_t unit = 0; unit < of_ranks.front()[k].size(); ++unit) {
      for (const auto pass : {&UnitPass::forward, &UnitPass::backward}) {
        slowest_units += meeting_of(ranks, [&](size_t rank) {
                           TESSERA_CHECK_EQ(of_ranks[rank].at(k).size(), of_ranks.front()[k].size());
                           return of_ranks[rank][k][unit].*pass;
                         }).slowest;
      }
    }
    const Meeting all = meeting_of(ranks, [&](size_t rank) {
      double seconds = 0;
      for (const UnitPass& pass : of_ranks[rank][k]) seconds += pass.forward + pass.backward;
      return seconds;
    });
    if (all.mean <= 0) continue;
    of_units.push_back(slowest_units / all.mean - 1);
    of_micro_batches.push_back(all.slowest / all.mean - 1);
  }
  if (of_units.empty()) return {};
  return {std::max(0.0, median(of_units)), std::max(0.0, median(of_micro_batches))};
}

}  // namespace tessera::profile
