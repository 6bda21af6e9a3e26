// SPDX-License-Identifier: Apache-2.0
// The subcommands: each adds its options to the app and returns what to do when it was chosen.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "tessera/base/error.h"

namespace CLI {
class App;
}

namespace tessera::cli {

/// Runs the chosen subcommand; returns the exit code.
using Action = std::function<int()>;

/// Of a value of --procs, where it was given. Errors: UserError in the name of the command, unless it is 1 or
/// more.
inline void check_procs(const char* command, const std::optional<int64_t>& procs) {
  if (procs && *procs < 1) user_error(command, "--procs of at least 1: got ", *procs);
}

Action add_train(CLI::App& app, std::vector<std::string> arguments);
Action add_eval(CLI::App& app, std::vector<std::string> arguments);
Action add_predict(CLI::App& app);
Action add_bench(CLI::App& app, std::vector<std::string> arguments);
Action add_launch(CLI::App& app);
Action add_models(CLI::App& app);
Action add_checkpoint(CLI::App& app);
Action add_options(CLI::App& app);
Action add_data(CLI::App& app);
Action add_compare(CLI::App& app);
Action add_doctor(CLI::App& app);
Action add_report(CLI::App& app);

}  // namespace tessera::cli
