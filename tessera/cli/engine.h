// SPDX-License-Identifier: Apache-2.0
// Loads libtessera.so, and LibTorch with it, when a command computes: `--help` and the parent of local ranks
// never do.
#pragma once

#include "tessera/train/entry.h"

namespace tessera::cli {

/// The library's functions. Errors: UserError when the library cannot be loaded, or when LD_LIBRARY_PATH puts
/// another LibTorch first (both paths named).
const train::Entry& engine();

}  // namespace tessera::cli
