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

}  // namespace tessera::launch
