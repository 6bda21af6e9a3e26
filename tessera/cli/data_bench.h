// SPDX-License-Identifier: Apache-2.0
// `tessera data bench`.
#pragma once

#include "tessera/cli/commands.h"

namespace tessera::cli {

/// Adds the subcommand to `data`.
Action add_data_bench(CLI::App& data);

}  // namespace tessera::cli
