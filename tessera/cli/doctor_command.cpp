// SPDX-License-Identifier: Apache-2.0
// `tessera doctor RECIPE`: will this run fit this machine?
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/base/json_text.h"
#include "tessera/cli/commands.h"
#include "tessera/cli/engine.h"
#include "tessera/cli/fake_data.h"
#include "tessera/cli/first_file_limit.h"
#include "tessera/launch/file_watchdog.h"
#include "tessera/launch/launch.h"
#include "tessera/monitor/checkup.h"
#include "tessera/recipe/recipe.h"

namespace tessera::cli {
namespace {

struct DoctorOptions {
  std::string recipe;
  std::vector<std::string> sets;
  std::optional<int64_t> procs;
  std::string fake_data;
  bool json = false;
};

constexpr const char* kDoctorFooter = R"(
Opens the training data, decodes some hundred images, measures matrix products and the network between ranks, and reads
the limits of the system, including cgroups. Nothing is written. The exit code is 2 if a line says FAIL.

Examples:
  tessera doctor recipes/clothing160.toml --procs 2
  tessera doctor recipes/quickstart.toml --fake-data
  tessera doctor recipes/quickstart.toml --procs 4 --set parallel.tensor=2)";

/// The ranks as they would be started: local ones, those of a launcher, or one.
launch::Ranks ranks_of(const DoctorOptions& options) {
  launch::Ranks ranks = launch::ranks_from_environment();
  check_procs("doctor", options.procs);
  if (options.procs) {
    if (ranks.world > 1) refuse_procs("doctor", *options.procs, ranks.launcher, ranks.world);
    ranks.world = ranks.local_world = *options.procs;
    ranks.launcher = "local";
  }
  return ranks;
}

int examine(DoctorOptions options) {
  if (!options.fake_data.empty()) options.sets.push_back(fake_source(options.fake_data));
  const launch::Ranks ranks = ranks_of(options);
  launch::FileWatchdog files(first_file_limit(options.sets), ranks.rank);
  const recipe::Recipe recipe = recipe::read_recipe(options.recipe, options.sets);
  files.set_limit(recipe::timeout_of(recipe.run));
  const monitor::CheckupFacts facts = engine().measure_for_checkup(recipe, ranks);
  if (ranks.rank > 0) return kExitDone;  // rank 0 says it all
  const auto findings = monitor::checkup(facts);
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const monitor::Finding& finding : findings) {
    using Level = monitor::Finding::Level;
    const char* level = finding.level == Level::kOk ? "ok" : finding.level == Level::kWarn ? "warn" : "fail";
    json.push_back({{"level", level},
                    {"subject", finding.subject},
                    {"found", finding.found},
                    {"advice", finding.advice}});
    if (!options.json) std::printf("%s\n", monitor::to_line(finding).c_str());
  }
  if (options.json) std::cout << json_text(json, 2) << std::endl;
  const bool fails = std::any_of(findings.begin(), findings.end(), [](const monitor::Finding& finding) {
    return finding.level == monitor::Finding::Level::kFail;
  });
  return fails ? kExitUser : kExitDone;
}

}  // namespace

Action add_doctor(CLI::App& app) {
  auto options = std::make_shared<DoctorOptions>();
  CLI::App* command = app.add_subcommand(
      "doctor", "Check whether a run fits this machine: memory, disk, cores, data and network");
  command->add_option("recipe", options->recipe, "Recipe file (TOML) of the run to check")->required();
  command
      ->add_option("--set", options->sets,
                   "Set a recipe key, such as --set shard.level=zero2; may be repeated")
      ->expected(1)
      ->allow_extra_args(false)
      ->take_all();
  command->add_option("--procs", options->procs,
                      "Number of ranks of the run on this host (default: those of the launcher, or one)");
  command->add_flag(kFakeDataFlag, options->fake_data, kFakeDataHelp);
  command->add_flag("--json", options->json, "Print the findings as JSON");
  command->footer(kDoctorFooter);
  return [options] { return examine(*options); };
}

}  // namespace tessera::cli
