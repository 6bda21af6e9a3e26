// SPDX-License-Identifier: Apache-2.0
// `tessera plan import-profile` and `tessera plan export-profile`.
#pragma once

#include "tessera/cli/commands.h"

namespace tessera::cli {

/// `plan`: the command whose subcommand it is.
Action add_plan_import_profile(CLI::App& plan);
Action add_plan_export_profile(CLI::App& plan);

}  // namespace tessera::cli
