// SPDX-License-Identifier: Apache-2.0
// The signals that ask a run to stop. Private to this room.
#pragma once

#include <signal.h>

#include <array>

namespace tessera::launch {

/// SIGINT and SIGTERM ask for a stop, and a second one ends the process at once. SIGUSR1 and SIGUSR2 only
/// announce a stop (sbatch --signal=USR1@120): the SIGTERM that follows them counts as the first.
inline constexpr std::array<int, 4> kStopSignals = {SIGINT, SIGTERM, SIGUSR1, SIGUSR2};

constexpr bool announces_a_stop(int signal) { return signal == SIGUSR1 || signal == SIGUSR2; }

/// Handles a stop signal that no other thread has taken: the kernel leaves it to the main thread also where
/// that waits in a call that cannot be interrupted. For a thread in which block_stop_signals() was called.
void take_pending_stop();
/// Blocks the stop signals in the calling thread.
void block_stop_signals();

}  // namespace tessera::launch
