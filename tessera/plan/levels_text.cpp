// SPDX-License-Identifier: Apache-2.0
#include "tessera/plan/levels_text.h"

#include <algorithm>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera::plan {

std::string levels_text(const Plan& plan) {
  struct Share {
    Level level;
    int64_t units;
  };
  std::vector<Share> shares;  // in the order in which they appear
  int64_t recompute = 0;
  for (const UnitPlan& unit : plan.units) {
    recompute += unit.recompute ? 1 : 0;
    const auto found = std::ranges::find(shares, unit.level, &Share::level);
    if (found == shares.end()) {
      shares.push_back({unit.level, 1});
    } else {
      ++found->units;
    }
  }
  std::vector<std::string> words;
  for (const Share& share : shares) {
    words.push_back(concat(to_string(share.level), shares.size() == 1 ? ", " : " ", share.units,
                           share.units == 1 ? " unit" : " units"));
  }
  return join(words, ", ") + (recompute > 0 ? concat("; ", recompute, " with recompute") : "");
}

}  // namespace tessera::plan
