// SPDX-License-Identifier: Apache-2.0
// `tessera plan search`.
#pragma once

#include "tessera/cli/commands.h"

namespace tessera::cli {

/// `plan`: the command whose subcommand it is.
Action add_plan_search(CLI::App& plan);

}  // namespace tessera::cli
