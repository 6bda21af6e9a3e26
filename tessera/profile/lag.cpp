// SPDX-License-Identifier: Apache-2.0
#include "tessera/profile/lag.h"

#include <algorithm>
#include <numeric>
namespace tessera::profile {

Lag lag_of(const std::vector<std::vector<std::vector<UnitPass>>>& of_ranks) {
  if (of_ranks.size() < 2) return {};
  Lag sum;
  double count = 0;
  for (size_t k = 0; k < of_ranks.front().size(); ++k) {
    double slowest_units = 0;
    std::vector<double> totals(of_ranks.size(), 0);  // of each rank
    for (size_t unit = 0; unit < of_ranks.front()[k].size(); ++unit) {
      for (const auto pass : {&UnitPass::forward, &UnitPass::backward}) {
        double slowest = 0;
        for (size_t rank = 0; rank < of_ranks.size(); ++rank) {
          const double seconds = of_ranks[rank].at(k).at(unit).*pass;
          totals[rank] += seconds;
          slowest = std::max(slowest, seconds);
        }
        slowest_units += slowest;
      }
    }
    const double mean =
        std::accumulate(totals.begin(), totals.end(), 0.0) / static_cast<double>(of_ranks.size());
    if (mean <= 0) continue;
    sum.unit += slowest_units / mean - 1;
    sum.micro_batch += std::ranges::max(totals) / mean - 1;
    ++count;
  }
  if (count == 0) return {};
  return {std::max(0.0, sum.unit / count), std::max(0.0, sum.micro_batch / count)};
}

}  // namespace tessera::profile
