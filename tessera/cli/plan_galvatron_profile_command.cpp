// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/plan_galvatron_profile_command.h"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <memory>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/text.h"
#include "tessera/cli/output_file.h"
#include "tessera/cli/plan_prediction.h"
#include "tessera/planner/galvatron_profile.h"
#include "tessera/planner/profile_json.h"

namespace tessera::cli {
namespace {

constexpr const char* kImportWhere = "cli.plan_import_profile";
constexpr const char* kExportWhere = "cli.plan_export_profile";
constexpr int64_t kMostRanksOfHost = 1'000'000;

struct ImportOptions {
  std::string recipe, computation, memory, output = "profile.json";
  std::vector<std::string> hardware, sets;
  int64_t ranks_of_host = 0;
  bool force = false;
};

struct ExportOptions {
  std::string profile, output, name;
  bool force = false;
};

planner::GalvatronFile read(const std::string& path) { return {path, read_file(path)}; }

int import_profile(const ImportOptions& options) {
  check_output_file(kImportWhere, options.output, options.force);
  const recipe::Recipe recipe = recipe::read_recipe(options.recipe, options.sets);
  planner::GalvatronProfileFiles files;
  for (const std::string& path : options.hardware) files.hardware.push_back(read(path));
  files.computation = read(options.computation);
  if (!options.memory.empty()) files.memory = read(options.memory);
  files.model = recipe.model;
  files.ranks_of_host = options.ranks_of_host;
  files.compute = dtype_name(recipe.precision.compute);
  const planner::ImportedProfile imported = planner::import_galvatron_profile(files);
  const planner::Profile& profile = imported.profile;
  write_file_atomic(options.output, planner::to_json(profile));
  std::cout << arch::describe(profile.model) << "; " << profile.provenance.compute << ", "
            << profile.provenance.ranks_of_host << " ranks per host, " << profile.units.size()
            << " times of units, " << profile.links.size() << " of messages\n";
  for (const std::string& note : imported.notes) std::cout << note << '\n';
  std::cout << "wrote " << options.output << "; predict with it:\n  tessera plan predict " << options.recipe
            << " --profile " << options.output << " --ranks " << profile.provenance.ranks_of_host;
  for (const std::string& set : options.sets) std::cout << " --set " << set;
  if (!files.compute.empty() && files.compute != profile.provenance.compute)
    std::cout << " --set precision.compute=" << profile.provenance.compute;
  std::cout << '\n';
  return kExitDone;
}

/// The folder is made if it is missing.
void write_files(const ExportOptions& options, const std::vector<planner::GalvatronFile>& files) {
  namespace fs = std::filesystem;
  std::error_code failed;
  const fs::path folder = options.output;
  const ResultFolder made(folder);
  for (const planner::GalvatronFile& file : files) {
    const std::string path = (folder / file.name).string();
    if (!options.force && fs::exists(path, failed)) {
      user_error({.where = kExportWhere,
                  .problem = concat("the file ", escape(path), " exists already"),
                  .expected = "a folder without it",
                  .hint = "use another --output, or --force to replace files"});
    }
  }
  for (const planner::GalvatronFile& file : files) {
    write_file_atomic(folder / file.name, file.text);
    std::cout << "wrote " << (folder / file.name).string() << '\n';
  }
}

int export_profile(const ExportOptions& options) {
  if (options.name.find('/') != std::string::npos) {
    user_error({.where = kExportWhere,
                .problem = concat("--model-name is ", escape(options.name)),
                .expected = "a part of a file's name, without /"});
  }
  const planner::Profile profile = planner::profile_from_json(read_file(options.profile), options.profile);
  const std::string name = options.name.empty() ? profile.model.family() : options.name;
  const planner::ExportedProfile exported = planner::export_galvatron_profile(profile, name);
  write_files(options, exported.files);
  for (const std::string& note : exported.notes) std::cout << note << '\n';
  return kExitDone;
}

}  // namespace

Action add_plan_import_profile(CLI::App& plan) {
  CLI::App* command = plan.add_subcommand(
      "import-profile", "Convert the profiles of Galvatron to a profile for predicted step times");
  auto options = std::make_shared<ImportOptions>();
  command->add_option("RECIPE", options->recipe, "Recipe (TOML) of the model that Galvatron profiled")
      ->required();
  command
      ->add_option("--hardware", options->hardware,
                   "Galvatron's hardware files (JSON): allreduce_bandwidth, p2p_bandwidth, sp_time, overlap")
      ->required()
      ->expected(1, -1);
  command->add_option("--computation", options->computation, "Galvatron's file of layer times (JSON)")
      ->required();
  command->add_option(
      "--memory", options->memory,
      "Galvatron's memory file (JSON), to check that it is of the recipe's model (default: none)");
  command
      ->add_option("--ranks-per-host", options->ranks_of_host,
                   "GPUs of a node (default: of the names of the hardware files, or one node)")
      ->check(CLI::Range(int64_t{1}, kMostRanksOfHost));
  command->add_option("--set", options->sets, "Override a key of the recipe: KEY=VALUE; may be repeated")
      ->allow_extra_args(false);
  command->add_option("-o,--output", options->output, "Profile file (JSON) to write")->capture_default_str();
  command->add_flag("--force", options->force, "Replace the profile file if it exists");
  command->footer(R"(
What the files do not say is assumed, and printed. docs/from_galvatron.md lists every key and what it becomes.

Example:
  tessera plan import-profile recipes/vit_huge.toml --computation computation_profiling_bf16_vit-huge_all.json \
      --hardware hardware_configs/*_1nodes_8gpus_per_node.json hardware_configs/overlap_coefficient.json)");
  return [options] { return import_profile(*options); };
}

Action add_plan_export_profile(CLI::App& plan) {
  CLI::App* command =
      plan.add_subcommand("export-profile", "Write a profile as files that Galvatron's search reads");
  auto options = std::make_shared<ExportOptions>();
  command->add_option("PROFILE", options->profile, "File that tessera plan profile wrote")->required();
  command->add_option("-o,--output", options->output, "Folder to write the files to")->required();
  command->add_option("--model-name", options->name,
                      "Name of the model in the name of the computation file (default: its family)");
  command->add_flag("--force", options->force, "Replace files that exist");
  command->footer(R"(
What Galvatron's files cannot hold is not written, and printed.

Example:
  tessera plan export-profile profile.json --output galvatron/ --model-name vit-huge)");
  return [options] { return export_profile(*options); };
}

}  // namespace tessera::cli
