// SPDX-License-Identifier: Apache-2.0
// `tessera plan profile`.
#pragma once

#include "tessera/cli/commands.h"

namespace tessera::cli {

/// `plan`: the command whose subcommand it is.
Action add_plan_profile(CLI::App& plan);
/// `tessera plan profile-hosts`.
Action add_plan_profile_hosts(CLI::App& plan);

}  // namespace tessera::cli
