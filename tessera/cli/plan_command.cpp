// SPDX-License-Identifier: Apache-2.0
// `tessera plan ...`: layouts without training.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/text.h"
#include "tessera/cli/commands.h"
#include "tessera/cli/imported_plan.h"
#include "tessera/cli/output_file.h"
#include "tessera/cli/plan_assume_command.h"
#include "tessera/cli/plan_explain_command.h"
#include "tessera/cli/plan_galvatron_profile_command.h"
#include "tessera/cli/plan_predict_command.h"
#include "tessera/cli/plan_profile_command.h"
#include "tessera/cli/plan_search_command.h"
#include "tessera/recipe/recipe.h"

namespace tessera::cli {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kMostPlanRanks = 1'000'000;

struct ImportOptions {
  std::string source, recipe, output;
  int64_t ranks = 0;
  bool force = false;
  plan::GalvatronSettings flags;
};

/// Galvatron's arguments for one strategy of all layers, and the help of each.
struct Flag {
  const char* name;
  const char* help;
};
constexpr Flag kFlags[] = {
    {"pp_deg", "Number of pipeline stages"},
    {"global_tp_deg", "Ranks of a tensor group, in all layers"},
    {"global_tp_consec",
     "1: tensor groups of adjacent ranks; 0: of ranks as far apart as possible (default: 1)"},
    {"sdp", "1: zero3 in all layers; 0: default_dp_type (default: 0)"},
    {"fsdp", "The same as --sdp; the name in older versions of Galvatron"},
    {"global_checkpoint", "1: recompute activations in all layers (default: 0)"},
    {"chunks", "Micro-batches per step (default: a quarter of the images of a rank, or the stages)"},
    {"pp_division", "Layers of each stage, such as 8,8,8,8 (default: even, the rest on the last stage)"},
    {"pipeline_type", "Order of passes: gpipe or pipedream_flush (default: gpipe)"},
    {"default_dp_type", "Level of layers without zero3: ddp, zero2 or zero3 (default: ddp)"},
    {"global_train_batch_size", "Images per step over all ranks"},
    {"apply_strategy", "0, since the flags are one strategy for all layers (default: 0)"},
    {"nproc_per_node", "Ranks of a pipeline stage; with --pp_deg it gives the number of ranks"},
};

/// "--pp_deg,--pp-deg"
std::string spellings(const std::string& name) {
  std::string dashed = name;
  std::ranges::replace(dashed, '_', '-');
  return dashed == name ? concat("--", name) : concat("--", name, ",--", dashed);
}

CLI::Option* add_setting(CLI::App* command, const std::shared_ptr<ImportOptions>& options,
                         const std::string& name, const std::string& help) {
  const auto set = [options, name](const std::string& value) {
    options->flags[name] = value.empty() ? "1" : value;  // --use-ulysses alone
  };
  return command->add_option_function<std::string>(spellings(name), set, help);
}

plan::GalvatronSettings settings_of(const ImportOptions& options) {
  if (options.source.empty() && options.flags.empty()) {
    user_error({.where = "cli.plan_import",
                .problem = "no plan is given",
                .expected = "a file, or Galvatron's flags such as --pp_deg 2 --global_tp_deg 2"});
  }
  if (options.source.empty()) return options.flags;
  if (!options.flags.empty()) {
    user_error({.where = "cli.plan_import",
                .problem = concat(escape(options.source), " and --", options.flags.begin()->first,
                                  " are both given"),
                .expected = "either a plan or flags",
                .hint = concat("remove --", options.flags.begin()->first)});
  }
  std::error_code ignored;
  const bool is_text = options.source.find('=') != std::string::npos && !fs::exists(options.source, ignored);
  return is_text ? plan::read_galvatron(options.source, "")
                 : plan::read_galvatron(read_file(options.source), options.source);
}

void print_next(const ImportOptions& options, const plan::GalvatronImport& imported) {
  if (options.output.empty()) {
    std::cout << "No file was written; add --output plan.json to train with this plan.\n";
    return;
  }
  std::cout << "wrote " << options.output << "; train with it:\n  tessera train " << options.recipe
            << " --procs " << imported.plan.world << " --set parallel.plan=" << options.output;
  if (imported.batch > 0) std::cout << " --set train.batch=" << imported.batch;
  if (imported.accumulation > 1) std::cout << " --set train.accumulation=" << imported.accumulation;
  std::cout << "\nAdd --dry-run to see memory and traffic first. On several hosts, use a launcher instead of "
               "--procs.\n";
}

int import_plan(const ImportOptions& options) {
  if (!options.output.empty()) check_output_file("cli.plan_import", options.output, options.force);
  const recipe::Recipe recipe = recipe::read_recipe(options.recipe, {});
  std::error_code ignored;
  const std::string where = fs::exists(options.source, ignored) ? options.source : "";
  plan::GalvatronImport imported =
      plan::import_galvatron(settings_of(options), recipe.model, options.ranks, where);
  imported.plan.prefetch = recipe.shard.prefetch;
  if (!options.output.empty()) write_file_atomic(options.output, plan::to_json(imported.plan));
  print_imported(imported, std::cout);
  print_next(options, imported);
  return kExitDone;
}

Action add_plan_import(CLI::App& plan) {
  CLI::App* command =
      plan.add_subcommand("import", "Convert a plan of Galvatron to a plan file for parallel.plan");
  auto options = std::make_shared<ImportOptions>();
  command->add_option(
      "SOURCE", options->source,
      "JSON file of Galvatron, file of assignments, or assignments: \"pp_deg=2, global_tp_deg=2\"");
  command
      ->add_option("--recipe", options->recipe,
                   "Recipe (TOML) of the model; Galvatron's layers are its blocks")
      ->required();
  command
      ->add_option("--ranks", options->ranks,
                   "Number of ranks (default: world_size, or nproc_per_node x pp_deg)")
      ->check(CLI::Range(int64_t{1}, kMostPlanRanks));
  command->add_option("-o,--output", options->output, "Plan file to write (default: only print the plan)");
  command->add_flag("--force", options->force, "Replace the plan file if it exists");
  for (const Flag& flag : kFlags) add_setting(command, options, flag.name, flag.help);
  // Accepted where they ask for nothing, and else refused with the reason.
  for (const std::string& name : plan::unavailable_galvatron_settings()) {
    add_setting(command, options, name, "")->expected(0, 1)->group("");
  }
  command->footer(R"(
The flags have Galvatron's names and are used without SOURCE; --pp-deg is the same as --pp_deg. In Python lists, SOURCE may
have [1]*32 or [0]*20+[1]*12. Settings without a counterpart, such as use_sp = 1, are refused by name.

Examples:
  tessera plan import galvatron_config.json --recipe recipes/vit_huge.toml --ranks 8 -o plan.json
  tessera plan import "nproc_per_node=4, pp_deg=2, global_tp_deg=2, global_tp_consec=0, fsdp=0" \
      --recipe recipes/vit_huge.toml
  tessera plan import --pp_deg 2 --global_tp_deg 2 --sdp 1 --ranks 8 --recipe recipes/vit_huge.toml)");
  return [options] { return import_plan(*options); };
}

}  // namespace

Action add_plan(CLI::App& app) {
  CLI::App* plan = app.add_subcommand(
      "plan",
      "Measure a machine, predict step times of plans, and exchange plans and profiles with Galvatron");
  plan->require_subcommand(1);
  const Action import = add_plan_import(*plan);
  const Action profile = add_plan_profile(*plan), profile_hosts = add_plan_profile_hosts(*plan);
  const Action assume = add_plan_assume(*plan);
  const Action predict = add_plan_predict(*plan), simulate = add_plan_simulate(*plan);
  const Action search = add_plan_search(*plan), explain = add_plan_explain(*plan);
  const Action import_profile = add_plan_import_profile(*plan),
               export_profile = add_plan_export_profile(*plan);
  plan->footer(R"(
Examples:
  tessera plan profile recipes/bv_s16_90ep.toml --procs 2
  tessera plan predict recipes/bv_s16_90ep.toml --profile profile.json --ranks 2
  tessera plan search recipes/bv_s16_90ep.toml --profile profile.json --ranks 2 --memory 1GiB
  tessera plan explain recipes/bv_s16_90ep.toml --profile profile.json --ranks 2 --memory 1GiB
  tessera plan import galvatron_config.json --recipe recipes/vit_huge.toml --ranks 8 -o plan.json)");
  return [=] {
    if (plan->got_subcommand("profile")) return profile();
    if (plan->got_subcommand("profile-hosts")) return profile_hosts();
    if (plan->got_subcommand("assume")) return assume();
    if (plan->got_subcommand("predict")) return predict();
    if (plan->got_subcommand("simulate")) return simulate();
    if (plan->got_subcommand("search")) return search();
    if (plan->got_subcommand("explain")) return explain();
    if (plan->got_subcommand("import-profile")) return import_profile();
    if (plan->got_subcommand("export-profile")) return export_profile();
    return import();
  };
}

}  // namespace tessera::cli
