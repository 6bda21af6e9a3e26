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

/// What one rank measured of one round, in seconds: a message beside a pass.
struct Overlap {
  double pass_alone = 0, message_alone = 0;
  double pass = 0, message = 0;  // the two begun together, each from the beginning to its own end
};

/// Seconds that the message would have needed alone for what it did beside the pass. Pure.
double seconds_beside(const Overlap& overlap);

/// Of messages. The part of the message that was under way beside the pass went slower by this factor, the
/// rest as fast as alone. Pure. Requires: positive times.
double link_slowdown_of(const Overlap& overlap);

/// `link`: link_slowdown_of(). `lost`: seconds by which passes get longer for each second that messages
/// beside them take alone: link (1 - 1 / compute). The result's link is higher where passes lose more than
/// this allows, as passes are not slowed more than tenfold. Pure.
Slowdown slowdown_of(double link, double lost);

/// In the model of few blocks, over TCP, medians over ranks and rounds. Micro-batches of the largest batch
/// beside an all-gather that takes longer than they do say how much slower messages get. Micro-batches of the
/// smallest batch beside the all-gather or the reduce-scatter of a block say what passes lose: messages of
/// this size often fit into buffers of the network, take less time for their bytes than long ones, and the
/// same time of the processor. 1 for one rank, and for shared memory, where a rank copies messages itself and
/// nothing is under way beside its passes. Ranks are threads of this process. Errors: UserError (no socket),
/// CommError.
Slowdown measure_slowdown(const PassSettings& passes, const LinkSettings& links);

}  // namespace tessera::profile
