// SPDX-License-Identifier: Apache-2.0
// Options of every command that reads a profile.
#pragma once

#include "tessera/cli/commands.h"
#include "tessera/cli/plan_prediction.h"

namespace tessera::cli {

/// RECIPE, --profile and --set.
void add_recipe_and_profile(CLI::App* command, PredictionQuery* query);
/// --force. `replaced`: the file that it replaces besides, such as "the trace file"; "": none.
void add_force(CLI::App* command, PredictionQuery* query, const std::string& replaced = "");

}  // namespace tessera::cli
