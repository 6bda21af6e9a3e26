// SPDX-License-Identifier: Apache-2.0
// What `tessera plan import` prints of a plan. No LibTorch.
#pragma once

#include <ostream>

#include "tessera/plan/import_galvatron.h"

namespace tessera::cli {

/// Writes the stages, then for each run of layers laid out alike: its blocks, level, degree, and the ranks of
/// its tensor and data-parallel groups.
void print_imported(const plan::GalvatronImport& imported, std::ostream& out);

}  // namespace tessera::cli
