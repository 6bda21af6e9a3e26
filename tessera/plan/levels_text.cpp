// SPDX-License-Identifier: Apache-2.0
#include "tessera/plan/levels_text.h"

#include <algorithm>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/plan/spans.h"

namespace tessera::plan {

std::string levels_text(const Plan& plan) {
  struct SplitCount {
    std::string split;
    int64_t units;
  };
  std::vector<SplitCount> counts;  // in the order in which they appear
  int64_t recompute = 0;
  for (const UnitPlan& unit : plan.units) {
    recompute += unit.recomputes() ? 1 : 0;
    std::string split = to_string(unit.level);
    if (unit.shard != 0)
      split += concat(" over ", unit.shard, " of ", data_parallel_span(plan, unit).size, " ranks");
    if (unit.is_cut())
      split += concat(" with tensor ", unit.layout.tensor, unit.layout.adjacent ? "" : " (strided)");
    const auto found = std::ranges::find(counts, split, &SplitCount::split);
    if (found == counts.end()) {
      counts.push_back({std::move(split), 1});
    } else {
      ++found->units;
    }
  }
  std::vector<std::string> words;
  for (const SplitCount& count : counts) {
    words.push_back(concat(count.split, counts.size() == 1 ? ", " : " ", count.units,
                           count.units == 1 ? " unit" : " units"));
  }
  return join(words, ", ") + (recompute > 0 ? concat("; ", recompute, " with recompute") : "");
}

}  // namespace tessera::plan
