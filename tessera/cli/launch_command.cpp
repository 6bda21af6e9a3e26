// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <memory>

#include "tessera/base/error.h"
#include "tessera/cli/commands.h"
#include "tessera/launch/launch.h"

namespace tessera::cli {

Action add_launch(CLI::App& app) {
  auto options = std::make_shared<launch::LocalOptions>();
  CLI::App* command = app.add_subcommand("launch", "Start any program as local ranks: a program of your own");
  command->add_option("--procs", options->procs, "Ranks to start")->capture_default_str();
  command->add_option("--logs", options->log_dir,
                      "Folder for the output of ranks 1, 2, ... (without: shown only when one fails)");
  command->prefix_command();
  command->footer(
      "Each rank finds its place in TESSERA_RANK and TESSERA_WORLD_SIZE, and the others at "
      "TESSERA_MASTER_ADDR\n"
      "and TESSERA_MASTER_PORT; tessera::library::connect() reads them. When one rank dies it is named and "
      "all\n"
      "end.\n\n  tessera launch --procs 2 ./my_training --epochs 3");
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
