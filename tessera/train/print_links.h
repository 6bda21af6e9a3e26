// SPDX-License-Identifier: Apache-2.0
// A table of measured messages. Private to this room.
#pragma once

#include <cstdio>
#include <vector>

#include "tessera/planner/profile.h"

namespace tessera::train {

/// To stdout; nothing where there are none.
inline void print_links(const std::vector<planner::LinkTimes>& links) {
  if (links.empty()) return;
  std::printf("\n%-15s %-9s %-14s %5s %12s %10s %8s\n", "messages", "group", "transport", "ranks",
              "latency us", "GB/s", "spread");
  for (const planner::LinkTimes& link : links) {
    std::printf("%-15s %-9s %-14s %5ld %12.1f %10.3f %6.1f %%", link.operation.c_str(), link.kind.c_str(),
                link.transport.c_str(), static_cast<long>(link.ranks), 1e6 * link.latency,
                1e-9 * link.bytes_per_second, 100 * link.spread);
    if (link.kind == planner::kHosts && link.operation != "send")
      std::printf("   %ld on each host", static_cast<long>(link.in_host));
    std::printf("\n");
  }
  std::fflush(stdout);
}

}  // namespace tessera::train
