// SPDX-License-Identifier: Apache-2.0
// `tessera plan assume`.
#pragma once

#include "tessera/cli/commands.h"

namespace tessera::cli {

/// `plan`: the command whose subcommand it is.
Action add_plan_assume(CLI::App& plan);

}  // namespace tessera::cli
