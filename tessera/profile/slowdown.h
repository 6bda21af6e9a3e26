// SPDX-License-Identifier: Apache-2.0
// How much passes and messages slow each other down.
#pragma once

#include "tessera/profile/link_times.h"
#include "tessera/profile/pass_times.h"

namespace tessera::profile {

/// Factors of at least 1.
struct Slowdown {
  double compute = 1;  // of passes while messages are under way
  double link = 1;     // of messages while passes are under way
};

/// What one rank measured of one round, in seconds.
struct Overlap {
  double pass_alone = 0, message_alone = 0;
  double pass = 0, message = 0;  // the two begun together, each from the beginning to its own end
};

/// The part of the message that was under way beside the pass went slower by the link's factor, the rest as
/// fast as alone. Pure. Requires: positive times.
Slowdown slowdown_of(const Overlap& overlap);

/// Micro-batches of the largest batch, in the model of few blocks, beside all-gathers over TCP that take
/// longer than the micro-batch. 1 for one rank, and for shared memory, where a rank copies messages itself
/// and nothing is under way beside its passes. Ranks are threads of this process. Errors: UserError (no
/// socket), CommError.
Slowdown measure_slowdown(const PassSettings& passes, const LinkSettings& links);

}  // namespace tessera::profile
