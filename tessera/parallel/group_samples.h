// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace tessera::parallel {

/// Which samples of a micro-batch the ranks of a tensor group hold.
struct GroupSamples {
  std::vector<int64_t> counts;    // by rank of the group; 0 is possible
  std::vector<uint64_t> numbers;  // rank 0's first: [sum of counts]
};

}  // namespace tessera::parallel
