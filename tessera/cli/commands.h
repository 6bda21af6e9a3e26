// The subcommands: each adds its options to the app and returns what to do when it was chosen.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace tessera::cli {

/// Runs the chosen subcommand; returns the exit code.
using Action = std::function<int()>;

Action add_train(CLI::App& app, std::vector<std::string> arguments);
Action add_eval(CLI::App& app, std::vector<std::string> arguments);
Action add_predict(CLI::App& app);
Action add_bench(CLI::App& app, std::vector<std::string> arguments);
Action add_launch(CLI::App& app);
Action add_models(CLI::App& app);
Action add_data(CLI::App& app);
Action add_checkpoint(CLI::App& app);
Action add_options(CLI::App& app);
Action add_compare(CLI::App& app);
Action add_doctor(CLI::App& app);

}  // namespace tessera::cli
