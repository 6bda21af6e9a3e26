// SPDX-License-Identifier: Apache-2.0
// `tessera plan predict` and `tessera plan simulate`.
#pragma once

#include "tessera/cli/commands.h"

namespace tessera::cli {

/// `plan`: the command whose subcommands they are.
Action add_plan_predict(CLI::App& plan);
Action add_plan_simulate(CLI::App& plan);

}  // namespace tessera::cli
