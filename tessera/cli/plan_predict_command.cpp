// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/plan_predict_command.h"

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/cli/output_file.h"
#include "tessera/cli/plan_prediction.h"
#include "tessera/cli/recipe_and_profile.h"

namespace tessera::cli {
namespace {

constexpr int64_t kMostPredictedRanks = 1'000'000;

struct PredictOptions {
  PredictionQuery query;
  std::string trace;
  bool json = false;
};

std::shared_ptr<PredictOptions> add_options(CLI::App* command) {
  auto options = std::make_shared<PredictOptions>();
  PredictionQuery& query = options->query;
  add_recipe_and_profile(command, &query);
  command->add_option("--ranks", query.ranks, "Number of ranks of the training")
      ->required()
      ->check(CLI::Range(int64_t{1}, kMostPredictedRanks));
  command
      ->add_option("--ranks-per-host", query.ranks_per_host,
                   "Ranks of each host (default: those of the profile)")
      ->check(CLI::Range(int64_t{1}, kMostPredictedRanks));
  return options;
}

int run_predict(const PredictOptions& options) {
  const Prediction prediction = predict(options.query, here());
  options.json ? print_prediction_json(prediction, std::cout) : print_prediction(prediction, std::cout);
  return kExitDone;
}

int run_simulate(PredictOptions options) {
  options.query.record = !options.trace.empty();
  if (options.query.record)
    check_output_file("cli.plan_simulate", options.trace, options.query.force, "--trace",
                      {options.query.recipe, options.query.profile});
  const Prediction prediction = predict(options.query, here());
  print_prediction(prediction, std::cout);
  print_drawing(prediction, std::cout);
  if (options.trace.empty()) return kExitDone;
  write_file_atomic(options.trace, trace_of(prediction));
  std::cout << "wrote " << options.trace << "; open it with https://ui.perfetto.dev\n";
  return kExitDone;
}

}  // namespace

Action add_plan_predict(CLI::App& plan) {
  CLI::App* command = plan.add_subcommand("predict", "Predict step time, traffic and memory of a layout");
  const auto options = add_options(command);
  add_force(command, &options->query);
  command->add_flag("--json", options->json, "Print JSON instead of a table");
  command->footer(R"(
The layout is that of the recipe: its keys shard.* and parallel.*, or the plan file of parallel.plan.

Example:
  tessera plan predict recipes/bv_s16_90ep.toml --profile profile.json --ranks 2 --set shard.level=zero3)");
  return [options] { return run_predict(*options); };
}

Action add_plan_simulate(CLI::App& plan) {
  CLI::App* command = plan.add_subcommand("simulate", "Simulate a step of a layout and show it over time");
  const auto options = add_options(command);
  add_force(command, &options->query, "the trace file");
  command->add_option("--trace", options->trace,
                      "Trace file (JSON) to write for Perfetto or chrome://tracing (default: none)");
  command->footer(R"(
Example:
  tessera plan simulate recipes/bv_s16_90ep.toml --profile profile.json --ranks 4 \
      --set parallel.pipeline=2 --trace step.json)");
  return [options] { return run_simulate(*options); };
}

}  // namespace tessera::cli
