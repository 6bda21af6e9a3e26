// SPDX-License-Identifier: Apache-2.0
// `tessera plan explain`: a page on why a plan is the fastest.
#pragma once

#include "tessera/cli/commands.h"

namespace tessera::cli {

Action add_plan_explain(CLI::App& plan);

}  // namespace tessera::cli
