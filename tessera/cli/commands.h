// SPDX-License-Identifier: Apache-2.0
// The subcommands: each adds its options to the app and returns what to do when it was chosen.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/error.h"

namespace CLI {
class App;
}

namespace tessera::cli {

/// Runs the chosen subcommand; returns the exit code.
using Action = std::function<int()>;

/// Throws UserError in the name of the command unless the option is at least 1.
inline void check_at_least_1(std::string_view command, const char* option, int64_t value) {
  if (value >= 1) return;
  user_error({.where = command, .problem = concat(option, " is ", value), .expected = "at least 1"});
}

/// Throws UserError: a launcher has started ranks already, and --procs is given.
[[noreturn]] inline void refuse_procs(std::string_view command, int64_t procs, const std::string& launcher,
                                      int64_t world) {
  user_error(
      {.where = command,
       .problem = concat("--procs is ", procs, ", but ", launcher, " has already started ", world, " ranks"),
       .expected = "either --procs or a launcher",
       .hint = "remove --procs"});
}

/// Of a value of --procs, where it was given. Errors: UserError in the name of the command, unless it is 1 or
/// more.
inline void check_procs(const char* command, const std::optional<int64_t>& procs) {
  if (procs) check_at_least_1(command, "--procs", *procs);
}

Action add_train(CLI::App& app, std::vector<std::string> arguments);
Action add_eval(CLI::App& app, std::vector<std::string> arguments);
Action add_predict(CLI::App& app, std::vector<std::string> arguments);
Action add_bench(CLI::App& app, std::vector<std::string> arguments);
Action add_launch(CLI::App& app);
Action add_models(CLI::App& app);
Action add_plan(CLI::App& app);
Action add_checkpoint(CLI::App& app);
Action add_options(CLI::App& app);
Action add_data(CLI::App& app);
Action add_compare(CLI::App& app);
Action add_doctor(CLI::App& app);
Action add_report(CLI::App& app);
Action add_trace(CLI::App& app);

}  // namespace tessera::cli
