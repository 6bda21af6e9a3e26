// SPDX-License-Identifier: Apache-2.0
// `tessera report RUN`: the page of a run that was stopped, or goes on.
#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>

#include "tessera/arch/model.h"
#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/text.h"
#include "tessera/cli/commands.h"
#include "tessera/monitor/metrics_row.h"
#include "tessera/monitor/report.h"
#include "tessera/monitor/tensor_statistics.h"
#include "tessera/recipe/recipe.h"

namespace tessera::cli {
namespace fs = std::filesystem;
namespace {

struct ReportOptions {
  std::string run, output;
};

constexpr const char* kReport = "report";

/// The step after which the run ended; nothing where summary.json is missing: the run was stopped or goes on.
std::optional<int64_t> last_step_of_all(const fs::path& run) {
  std::error_code ignored;
  if (!fs::is_regular_file(run / "summary.json", ignored)) return std::nullopt;
  const auto summary = nlohmann::json::parse(read_file(run / "summary.json"), nullptr, false);
  if (!summary.is_object() || !summary.contains("steps") || !summary["steps"].is_number_integer())
    return std::nullopt;
  return summary["steps"].get<int64_t>();
}

/// Names and values of environment.json; each environment variable is a separate entry.
std::vector<std::pair<std::string, std::string>> environment_of(const fs::path& file) {
  std::vector<std::pair<std::string, std::string>> rows;
  std::error_code ignored;
  if (!fs::is_regular_file(file, ignored)) return rows;
  const auto json = nlohmann::ordered_json::parse(read_file(file), nullptr, false);
  if (!json.is_object()) return rows;
  for (const auto& [name, value] : json.items()) {
    if (value.is_object()) {
      for (const auto& [variable, text] : value.items())
        if (text.is_string()) rows.emplace_back(variable, text.get<std::string>());
    } else {
      rows.emplace_back(name, value.is_string() ? value.get<std::string>() : value.dump());
    }
  }
  return rows;
}

int write_page(const ReportOptions& options) {
  const fs::path run = options.run;
  std::error_code ignored;
  if (!fs::is_regular_file(run / "recipe.toml", ignored)) {
    user_error({.where = kReport,
                .problem = concat("there is no recipe.toml in ", run.string()),
                .expected = "the folder of a run, such as runs/quickstart",
                .hint = ""});
  }
  const recipe::Recipe recipe =
      recipe::parse_recipe(read_file(run / "recipe.toml"), (run / "recipe.toml").string(), ".", {});
  const fs::path rows = run / "metrics.jsonl";
  monitor::History history;
  if (fs::is_regular_file(rows, ignored))
    history = monitor::parse_history(read_file(rows), std::numeric_limits<int64_t>::max());
  const int64_t step = history.steps.empty() ? 0 : history.steps.back().step;
  const auto end = last_step_of_all(run);
  if (options.output.empty() && end && step <= *end && fs::exists(run / "report.html", ignored)) {
    user_error({.where = kReport,
                .problem = concat(run.string(),
                                  " is finished: its report.html has predictions and a confusion "
                                  "matrix, which only the run itself can write"),
                .expected = "a run that was stopped or goes on",
                .hint = "write another page with --output FILE"});
  }
  monitor::ReportInput input;
  input.title = recipe.name;
  input.facts = {{"state", concat("written by tessera report after step ", human_count(step),
                                  "; predictions and the confusion matrix follow at the end of the run")},
                 {"model", arch::describe(recipe.model)},
                 {"parameters", human_count(arch::parameter_count(recipe.model))},
                 {"forward GFLOP per image", concat(arch::forward_flops(recipe.model) / 1e9)},
                 {"data", concat(recipe.data.source, recipe.data.mix.empty() ? "" : " + ",
                                 join(recipe.data.mix, " + "))},
                 {"optimizer", concat(recipe.optimizer.name, ", learning rate ", recipe.optimizer.lr)}};
  input.steps = std::move(history.steps);
  input.evals = std::move(history.evals);
  if (fs::is_regular_file(run / "statistics.jsonl", ignored))
    input.statistics = monitor::read_statistics(run / "statistics.jsonl");
  input.recipe_toml = recipe::to_toml(recipe);
  input.environment = environment_of(run / "environment.json");
  const fs::path page = options.output.empty() ? run / "report.html" : fs::path(options.output);
  monitor::write_report(page, input);
  std::cout << "wrote " << page.string() << " (" << human_count(static_cast<int64_t>(input.steps.size()))
            << " rows, " << input.evals.size() << " evaluations)\n";
  return kExitDone;
}

}  // namespace

Action add_report(CLI::App& app) {
  auto options = std::make_shared<ReportOptions>();
  CLI::App* command =
      app.add_subcommand("report", "Write report.html of a run that was stopped or is still running");
  command->add_option("run", options->run, "Run folder, such as runs/quickstart")->required();
  command->add_option("-o,--output", options->output,
                      "HTML file to write (default: report.html in the run folder)");
  command->footer(R"(
Reads metrics.jsonl, statistics.jsonl, environment.json and recipe.toml of the run folder. A run that ends writes its
report.html itself, with predictions and the confusion matrix.

Examples:
  tessera report runs/quickstart
  tessera report runs/quickstart -o quickstart.html)");
  return [options] { return write_page(*options); };
}

}  // namespace tessera::cli
