// SPDX-License-Identifier: Apache-2.0
// What `tessera plan profile` measures of what it was asked for. Pure but for a warning. Private to this
// room.
#pragma once

#include <cstdint>
#include <vector>

#include "tessera/train/entry.h"

namespace tessera::train {

struct ProfileScope {
  int64_t ranks = 1;                     // of this host, measured at the same time
  std::vector<int64_t> tensor, batches;  // each once, ascending
};

/// With the defaults of the CPU, or of a GPU, where one rank is measured. `cores`: of this host. Errors:
/// UserError that names the option and what is allowed. Warns of more threads than cores.
ProfileScope profile_scope(const PlanProfileJob& job, bool on_gpu, int64_t cores);

}  // namespace tessera::train
