// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/plan_search_command.h"

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/text.h"
#include "tessera/base/words.h"
#include "tessera/cli/output_file.h"
#include "tessera/cli/plan_search.h"
#include "tessera/cli/plan_verify.h"

namespace tessera::cli {
namespace {

constexpr const char* kSearchWhere = "cli.plan_search";
constexpr int64_t kMostSearchedRanks = 1'000'000;

struct SearchOptions {
  SearchRequest request;
  std::string hosts, output = "plan.json";
  int64_t ranks = 0;
  size_t show = 5;
  bool json = false, uniform = false, verify = false;
};

/// "4x8": hosts and ranks of each.
void take_hosts(SearchOptions& options) {
  PredictionQuery& query = options.request.query;
  query.ranks = options.ranks;
  if (options.hosts.empty()) {
    if (options.ranks > 0) return;
    user_error({.where = kSearchWhere,
                .problem = "the number of ranks is not given",
                .expected = "--ranks N or --hosts HxN"});
  }
  const size_t times = options.hosts.find('x');
  const std::string_view text = options.hosts;
  const auto hosts = parse_number<int64_t>(text.substr(0, times));
  const auto ranks =
      times == std::string::npos ? std::nullopt : parse_number<int64_t>(text.substr(times + 1));
  if (!hosts || !ranks || *hosts < 1 || *ranks < 1 || *hosts > kMostSearchedRanks / *ranks) {
    user_error({.where = kSearchWhere,
                .problem = concat("--hosts is ", escape(options.hosts)),
                .expected = "hosts and ranks of each, such as 4x8"});
  }
  if (options.ranks > 0 && options.ranks != *hosts * *ranks) {
    user_error({.where = kSearchWhere,
                .problem = concat("--ranks is ", options.ranks, ", and --hosts ", options.hosts, " are ",
                                  *hosts * *ranks),
                .expected = "the same number, or one of them alone"});
  }
  query.ranks = *hosts * *ranks;
  query.ranks_per_host = *ranks;
}

int search(SearchOptions options) {
  take_hosts(options);
  if (!options.output.empty()) check_output_file(kSearchWhere, options.output, options.request.query.force);
  options.request.layer_by_layer = !options.uniform;
  SearchedPlan searched = search_plan(options.request, here());
  if (options.verify) verify_plans(options.request, &searched, options.json ? std::cerr : std::cout);
  options.json ? print_search_json(searched, std::cout) : print_search(searched, options.show, std::cout);
  if (options.output.empty()) return kExitDone;
  const planner::FoundPlan& best = searched.result.best.front();
  write_file_atomic(options.output, plan::to_json(best.question.plan));
  if (options.json) return kExitDone;
  std::cout << "\nwrote " << options.output << "; train it with:\n  tessera train "
            << options.request.query.recipe;
  for (const std::string& set : options.request.query.sets) std::cout << " --set " << set;
  for (const std::string& set : settings_of(searched, best, options.output)) std::cout << " --set " << set;
  std::cout << " --expected-step " << best.time.seconds << '\n';
  return kExitDone;
}

}  // namespace

Action add_plan_search(CLI::App& plan) {
  CLI::App* command =
      plan.add_subcommand("search", "Search the fastest layout of a model within the memory of a rank");
  auto options = std::make_shared<SearchOptions>();
  SearchRequest& request = options->request;
  PredictionQuery& query = request.query;
  command->add_option("RECIPE", query.recipe, "Recipe (TOML) of the training")->required();
  command->add_option("--profile", query.profile, "File that plan profile, assume or import-profile wrote")
      ->required();
  command->add_option("--ranks", options->ranks, "Number of ranks of the training")
      ->check(CLI::Range(int64_t{1}, kMostSearchedRanks));
  command->add_option("--hosts", options->hosts,
                      "Hosts and ranks of each, such as 4x8 (default: hosts as in the profile)");
  command->add_option(
      "--memory", request.memory,
      "Memory of a rank, such as 24GiB (default: the assumed device's; else 90 % of what is free "
      "here, divided by the ranks of a host)");
  command
      ->add_option("--batch", request.batch,
                   "Images of a step over all ranks: numbers, or any; the plan with most images/s is chosen "
                   "(default: the recipe's)")
      ->delimiter(',');
  command->add_flag("--uniform", options->uniform, "Give all blocks the same layout");
  command->add_option("--seconds", request.seconds, "Time limit of the search")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  command->add_option("--show", options->show, "Number of plans to show")->capture_default_str();
  command->add_option("--set", query.sets, "Override a key of the recipe: KEY=VALUE; may be repeated")
      ->allow_extra_args(false);
  command->add_option("-o,--output", options->output, "Plan file to write; empty: none")
      ->capture_default_str();
  command->add_flag("--verify", options->verify,
                    "Make a few steps with the best 3 plans on this host and choose the fastest");
  command->add_flag("--json", options->json, "Print JSON instead of a table");
  command->add_flag(
      "--force", query.force,
      "Replace the plan file; accept a profile of another machine, build, dtype or number of threads");
  command->footer(R"(
Every plan that counts is simulated as by `tessera plan predict`. The keys shard.* and parallel.* of the recipe do not
count; train.accumulation and train.batch_per_rank are kept if they are given. What the search leaves out is printed.

Examples:
  tessera plan search recipes/bv_s16_90ep.toml --profile profile.json --ranks 2 --memory 1GiB
  tessera plan search recipes/vit_huge.toml --profile h100.json --hosts 8x8 --memory 80GB --batch 1024,2048 -o plan.json)");
  return [options] { return search(*options); };
}

}  // namespace tessera::cli
