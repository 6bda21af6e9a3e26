// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/plan_explain_command.h"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <memory>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/text.h"
#include "tessera/cli/output_file.h"
#include "tessera/cli/plan_page.h"
#include "tessera/cli/plan_search_options.h"

namespace tessera::cli {
namespace {

constexpr const char* kExplainWhere = "cli.plan_explain";

struct ExplainOptions {
  SearchOptions search;
  std::string output = "plan.html";
  std::string plan;  // file; empty: none is written
  bool json = false;
};

std::vector<std::string> commands_of(const ExplainOptions& options, const ExplainedPlan& explained) {
  const SearchRequest& request = options.search.request;
  const std::string file = options.plan.empty() ? "plan.json" : options.plan;
  const std::string train =
      training_command(request, explained.searched, explained.searched.result.best.front(), file);
  if (!options.plan.empty()) return {train};
  return {concat("tessera plan search ", request.query.recipe, ' ', options_text(options.search),
                 " --output ", file),
          train};
}

void check_files(const ExplainOptions& options) {
  const PredictionQuery& query = options.search.request.query;
  const std::vector<std::string> read = {query.recipe, query.profile};
  check_output_file(kExplainWhere, options.output, query.force, "--output", read);
  if (options.plan.empty()) return;
  check_output_file(kExplainWhere, options.plan, query.force, "--plan", read);
  const auto place = [](const std::string& path) { return std::filesystem::weakly_canonical(path); };
  if (place(options.plan) != place(options.output)) return;
  user_error({.where = kExplainWhere,
              .problem = concat("--plan and --output are both ", escape(options.plan)),
              .expected = "two files"});
}

int explain(const ExplainOptions& options) {
  const SearchRequest request = request_of(options.search, kExplainWhere);
  check_files(options);
  ExplainedPlan explained = explain_plan(request, here());
  explained.commands = commands_of(options, explained);
  options.json ? print_explanation_json(explained, std::cout) : print_explanation(explained, std::cout);
  write_file_atomic(options.output, plan_page(explained));
  if (!options.plan.empty()) write_file_atomic(options.plan, plan::to_json(explained.winner.question.plan));
  if (options.json) return kExitDone;
  std::cout << "\nwrote " << options.output << "; train the winner with:\n";
  for (const std::string& command : explained.commands) std::cout << "  " << command << '\n';
  return kExitDone;
}

}  // namespace

Action add_plan_explain(CLI::App& plan) {
  CLI::App* command = plan.add_subcommand(
      "explain", "Write a page on the fastest layout: what other layouts lose, what it depends on");
  auto options = std::make_shared<ExplainOptions>();
  add_search_options(command, &options->search);
  command->add_option("-o,--output", options->output, "HTML file to write")->capture_default_str();
  command->add_option("--plan", options->plan,
                      "Plan file of the fastest layout to write (default: only the page)");
  command->add_flag("--json", options->json, "Print JSON instead of text; the page is written as well");
  command->add_flag("--force", options->search.request.query.force,
                    "Replace files; accept a profile of another machine, build, dtype or number of threads");
  command->footer(R"(
The page compares the fastest layout with the second one and with the fastest data-parallel, ZeRO, tensor-parallel and
pipeline layouts, shows its stages and its step over time, repeats the search for slower and faster links and less and
more memory, and says how many images a rank-hour yields with 1, 2, 4, ... ranks. It is one file without references.

Examples:
  tessera plan explain recipes/bv_s16_90ep.toml --profile profile.json --ranks 2
  tessera plan assume recipes/vit_huge.toml --machine recipes/machines/h100_sxm.toml -o huge-h100.json
  tessera plan explain recipes/vit_huge.toml --profile huge-h100.json --hosts 8x8 --memory 80GB --batch 1024 \
    -o huge.html --plan huge.json)");
  return [options] { return explain(*options); };
}

}  // namespace tessera::cli
