// `tessera data ...`: what can be done with data sets without training.
#include <CLI/CLI.hpp>

#include "tessera/cli/commands.h"
#include "tessera/cli/data_bench.h"

namespace tessera::cli {

Action add_data(CLI::App& app) {
  CLI::App* data = app.add_subcommand("data", "Measure data sets");
  data->require_subcommand(1);
  return add_data_bench(*data);
}

}  // namespace tessera::cli
