// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <memory>

#include "tessera/base/error.h"
#include "tessera/cli/commands.h"
#include "tessera/launch/launch.h"

namespace tessera::cli {

Action add_launch(CLI::App& app) {
  auto options = std::make_shared<launch::LocalOptions>();
  CLI::App* command = app.add_subcommand("launch", "Start any program that uses the library as local ranks");
  command->add_option("--procs", options->procs, "Number of ranks to start on this host")
      ->capture_default_str();
  command->add_option("--logs", options->log_dir,
                      "Folder for the output of ranks 1, 2, ... (default: shown only for a rank that fails)");
  command->prefix_command();
  command->footer(
      R"(
Give the program and its arguments after the options. Each rank gets TESSERA_RANK, TESSERA_WORLD_SIZE,
TESSERA_MASTER_ADDR and TESSERA_MASTER_PORT, which tessera::library::connect() reads. If a rank fails, an error
names it and all ranks are stopped.

Examples:
  tessera launch --procs 2 ./my_training --epochs 3
  tessera launch --procs 4 --logs logs ./my_training)");
  return [options, command] {
    std::vector<std::string> words = command->remaining();
    if (words.empty()) {
      user_error({.where = "launch",
                  .problem = "no program to start is given",
                  .hint = "tessera launch --procs 2 ./program ARGS"});
    }
    options->program = words.front();
    words.erase(words.begin());
    return launch::run_local(*options, words);
  };
}

}  // namespace tessera::cli
