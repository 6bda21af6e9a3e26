// SPDX-License-Identifier: Apache-2.0
// `tessera train --dry-run`: opens what the run would open, and writes nothing.
#pragma once

#include "tessera/base/log.h"
#include "tessera/train/prepared.h"

namespace tessera::train {

/// Checks the run folder, the checkpoint to resume from, train.init_from and distill.teacher, by the code
/// that the run itself uses, and says in a line each what the run would take. Reads headers, no tensors.
/// Requires: open_data() has succeeded. Errors: UserError, those of the run's start.
void check_what_opens(const Prepared& p, Log& log);

}  // namespace tessera::train
