// SPDX-License-Identifier: Apache-2.0
// Loads libtessera.so, and LibTorch with it, when a command computes: `--help` and the parent of local ranks
// never do.
#pragma once

#include "tessera/train/entry.h"

namespace tessera::cli {

/// The library's functions. Loads LibTorch from where launch::find_torch() finds it, by absolute path, so
/// that a LibTorch in LD_LIBRARY_PATH is never mixed in. Errors: UserError when LibTorch or the library
/// cannot be loaded.
const train::Entry& engine();

}  // namespace tessera::cli
