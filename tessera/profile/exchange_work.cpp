// SPDX-License-Identifier: Apache-2.0
#include "tessera/profile/exchange_work.h"

#include <algorithm>
#include <string>
#include <vector>

#include "tessera/plan/traffic.h"

namespace tessera::profile {

std::map<int64_t, double> compute_per_exchanged_byte(const planner::Profile& profile,
                                                     const recipe::Recipe& recipe, int64_t value_bytes) {
  struct Work {
    double seconds = 0, bytes = 0;
  };
  std::map<int64_t, Work> by_ranks;
  const std::vector<std::string> kinds = planner::unit_kinds(profile.model);
  for (const planner::UnitTimes& unit : profile.units) {
    if (unit.tensor == 1 || unit.recompute != plan::Recompute::kNone) continue;
    const plan::Plan plan = plan::plan_of_blocks(profile.model, unit.tensor, unit.tensor, unit.recompute,
                                                 recipe.parallel.keep_gathered);
    const auto index = static_cast<size_t>(std::ranges::find(kinds, unit.kind) - kinds.begin());
    const double bytes =
        plan::exchanged_per_image(profile.model, plan, index, {.compute_bytes = value_bytes});
    if (bytes == 0) continue;  // stem and head are whole
    Work& work = by_ranks[unit.tensor];
    work.seconds += unit.forward + unit.backward;
    work.bytes += bytes * static_cast<double>((unit.tensor - 1) * unit.batch);
  }
  std::map<int64_t, double> found;
  for (const auto& [ranks, work] : by_ranks) found[ranks] = work.seconds / work.bytes;
  return found;
}

}  // namespace tessera::profile
