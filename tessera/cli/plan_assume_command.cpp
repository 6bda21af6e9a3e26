// SPDX-License-Identifier: Apache-2.0
// `tessera plan assume RECIPE`: a profile of a machine that is not here.
#include "tessera/cli/plan_assume_command.h"

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/cli/output_file.h"
#include "tessera/planner/profile_json.h"
#include "tessera/recipe/machine.h"
#include "tessera/recipe/recipe.h"

namespace tessera::cli {
namespace {

constexpr int64_t kMostAssumedRanks = 1'000'000;

struct AssumeOptions {
  std::string recipe, machine, output = "profile.json";
  std::vector<std::string> sets;
  std::optional<int64_t> ranks_per_host;
  bool force = false;
};

int assume(const AssumeOptions& options) {
  check_output_file("cli.plan_assume", options.output, options.force, "--output",
                    {options.recipe, options.machine});
  const recipe::Recipe recipe = recipe::read_recipe(options.recipe, options.sets);
  planner::Machine machine = recipe::read_machine(options.machine);
  machine.ranks_of_host = options.ranks_per_host.value_or(machine.ranks_of_host);
  const planner::Profile profile = planner::assumed_profile(recipe.model, machine);
  const std::string text = planner::to_json(profile);
  static_cast<void>(planner::profile_from_json(text, options.machine));  // refuses what no machine can do
  write_file_atomic(options.output, text);
  std::cout << arch::describe(profile.model) << '\n'
            << profile.provenance.device << ", " << machine.compute << ", " << machine.ranks_of_host
            << (machine.ranks_of_host == 1 ? " rank" : " ranks") << " per host; nothing was measured\n"
            << "sources: " << machine.source << "\nwrote " << options.output << '\n';
  return kExitDone;
}

}  // namespace

Action add_plan_assume(CLI::App& plan) {
  CLI::App* command = plan.add_subcommand(
      "assume", "Compute a profile of a machine that cannot be measured, from published constants");
  auto options = std::make_shared<AssumeOptions>();
  command->add_option("RECIPE", options->recipe, "Recipe (TOML) of the model")->required();
  command->add_option("--machine", options->machine, "Description (TOML) of the machine")->required();
  command->add_option("--set", options->sets, "Override a key of the recipe: KEY=VALUE; may be repeated")
      ->allow_extra_args(false);
  command
      ->add_option("--ranks-per-host", options->ranks_per_host,
                   "Ranks of each host (default: host.ranks of the description)")
      ->check(CLI::Range(int64_t{1}, kMostAssumedRanks));
  command->add_option("-o,--output", options->output, "Profile file (JSON) to write")->capture_default_str();
  command->add_flag("--force", options->force, "Replace the profile file if it exists");
  command->footer(R"(
Times follow from the FLOPs of the model and the constants of the description (docs/planner.md). Measure with
tessera plan profile where the machine is at hand: an assumed profile is much less accurate.

Example:
  tessera plan assume recipes/vit_120b.toml --machine recipes/machines/h100_sxm.toml --output h100.json
  tessera plan predict recipes/vit_120b.toml --profile h100.json --ranks 2048)");
  return [options] { return assume(*options); };
}

}  // namespace tessera::cli
