// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/busy_ranks.h"

#include <algorithm>

namespace tessera::planner {

BusyRanks::BusyRanks(const Profile& profile, const StageRanks& of)
    : slowdown_(profile.busy_ranks_slowdown),
      measured_ranks_(static_cast<double>(profile.provenance.ranks_of_host)) {
  if (!matters()) return;
  for (int64_t stage = 0; stage < of.stages; ++stage) {
    Host& host = hosts_.emplace_back();
    const int64_t first = stage * of.ranks, begin = first / of.ranks_of_host * of.ranks_of_host,
                  end = std::min(begin + of.ranks_of_host, of.stages * of.ranks);
    const int64_t last_stage = (end - 1) / of.ranks;
    for (int64_t other = begin / of.ranks; other <= last_stage; ++other) {
      const int64_t ranks = std::min(end, (other + 1) * of.ranks) - std::max(begin, other * of.ranks);
      if (other == stage)
        host.own = static_cast<double>(ranks - 1);
      else
        host.others.emplace_back(static_cast<size_t>(other), static_cast<double>(ranks));
    }
  }
}

double BusyRanks::share_beside(double ranks) const {
  return std::clamp((1 + ranks) / measured_ranks_, 1 / slowdown_, 1.0);
}

double BusyRanks::share(size_t stage, const std::vector<bool>& busy) const {
  if (!matters()) return 1;
  double ranks = hosts_[stage].own;
  for (const auto& [other, count] : hosts_[stage].others) ranks += busy[other] ? count : 0;
  return share_beside(ranks);
}

double BusyRanks::least_share() const {
  double least = 1;
  for (const Host& host : hosts_) least = std::min(least, share_beside(host.own));
  return least;
}

}  // namespace tessera::planner
