// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/plan_search_command.h"

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/cli/number_checks.h"
#include "tessera/cli/output_file.h"
#include "tessera/cli/plan_search_options.h"
#include "tessera/cli/plan_verify.h"

namespace tessera::cli {
namespace {

constexpr const char* kSearchWhere = "cli.plan_search";

struct SearchCommandOptions {
  SearchOptions search;
  std::string output = "plan.json";
  size_t show = 5;
  bool json = false, verify = false;
};

int search(const SearchCommandOptions& options) {
  const SearchRequest request = request_of(options.search, kSearchWhere);
  const PredictionQuery& query = request.query;
  if (!options.output.empty())
    check_output_file(kSearchWhere, options.output, query.force, "--output", {query.recipe, query.profile});
  SearchedPlan searched = search_plan(request, here());
  if (options.verify) verify_plans(request, &searched, options.json ? std::cerr : std::cout);
  options.json ? print_search_json(searched, std::cout) : print_search(searched, options.show, std::cout);
  if (options.output.empty()) return kExitDone;
  const planner::FoundPlan& best = searched.result.best.front();
  write_file_atomic(options.output, plan::to_json(best.question.plan));
  if (options.json) return kExitDone;
  std::cout << "\nwrote " << options.output << "; train it with:\n  "
            << training_command(request, searched, best, options.output) << '\n';
  return kExitDone;
}

}  // namespace

Action add_plan_search(CLI::App& plan) {
  CLI::App* command =
      plan.add_subcommand("search", "Search the fastest layout of a model within the memory of a rank");
  auto options = std::make_shared<SearchCommandOptions>();
  add_search_options(command, &options->search);
  command->add_option("--show", options->show, "Number of plans to show")
      ->check(at_least(1))
      ->capture_default_str();
  command->add_option("-o,--output", options->output, "Plan file to write; empty: none")
      ->capture_default_str();
  command->add_flag(
      "--verify", options->verify,
      "Make a few steps on this host with the best 3 plans whose blocks differ, and choose the fastest");
  command->add_flag("--json", options->json, "Print JSON instead of a table");
  command->add_flag(
      "--force", options->search.request.query.force,
      "Replace the plan file; accept a profile of another machine, build, dtype or number of threads");
  command->footer(R"(
Every plan that counts is simulated as by `tessera plan predict`. The keys shard.* and parallel.* of the recipe do not
count; train.accumulation and train.batch_per_rank are kept if they are given. What the search leaves out is printed.

Examples:
  tessera plan search recipes/bv_s16_90ep.toml --profile profile.json --ranks 2 --memory 1GiB
  tessera plan assume recipes/vit_huge.toml --machine recipes/machines/h100_sxm.toml -o huge-h100.json
  tessera plan search recipes/vit_huge.toml --profile huge-h100.json --hosts 8x8 --memory 80GB --batch 1024,2048 -o plan.json)");
  return [options] { return search(*options); };
}

}  // namespace tessera::cli
