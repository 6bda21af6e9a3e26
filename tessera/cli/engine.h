// SPDX-License-Identifier: Apache-2.0
// Loads libtessera.so, and LibTorch with it, when a command computes: `--help` and the parent of local ranks
// never do.
#pragma once

#include "tessera/train/entry.h"

namespace tessera::cli {

/// How OpenMP's threads wait for each other.
enum class Waiting {
  kSpin,   // the library's default: fastest for work that has the cores to itself, such as training
  kSleep,  // for commands that compute for seconds, beside other work: a thread that spins takes the core
           // from the one it waits for
};

/// The library's functions. Loads LibTorch from where launch::find_torch() finds it, by absolute path, so
/// that a LibTorch in LD_LIBRARY_PATH is never mixed in. Errors: UserError when LibTorch or the library
/// cannot be loaded. `waiting` counts in the first call, and only where neither OMP_WAIT_POLICY nor
/// GOMP_SPINCOUNT is set: OpenMP reads them once, when it is loaded.
const train::Entry& engine(Waiting waiting = Waiting::kSpin);

}  // namespace tessera::cli
