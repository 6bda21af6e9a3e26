// SPDX-License-Identifier: Apache-2.0
// `tessera compare RUN RUN|CURVE.csv`: where two runs part, and what differs between them. `tessera compare
// --layouts A B RECIPE`: the first tensor that two layouts compute differently.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/json_text.h"
#include "tessera/base/text.h"
#include "tessera/cli/commands.h"
#include "tessera/cli/engine.h"
#include "tessera/cli/first_file_limit.h"
#include "tessera/cli/number_checks.h"
#include "tessera/launch/file_watchdog.h"
#include "tessera/launch/launch.h"
#include "tessera/launch/surroundings.h"
#include "tessera/monitor/compare.h"
#include "tessera/recipe/recipe.h"

namespace tessera::cli {
namespace fs = std::filesystem;
namespace {

struct CompareOptions {
  std::string a, b;
  std::optional<double> tolerance;
  bool json = false;
  std::vector<std::string> layouts;  // two, or none: runs are compared
  train::CompareLayoutsJob job;      // of layouts
};

constexpr int64_t kMostComparedSteps = 1000;
constexpr double kLargestTolerance = 1e9;

constexpr const char* kCompareFooter = R"(
With --layouts, training steps of RECIPE run under both layouts on the CPU, ranks as threads of this process. A layout is
the path of a plan file (plan.json of a run), or settings separated by commas, or by semicolons where values contain
commas: ranks=N (default: 1) and recipe keys. Exit code 0: the layouts agree; 1: they differ.

A CSV file needs a column "step" and columns named as in metrics.csv. Only steps that both sides have are compared. Two
values differ if |a - b| > tolerance * max(|a|, |b|). Speeds, waiting times, memory and durations are printed but do not
count as differences.

Examples:
  tessera compare runs/base runs/base-2
  tessera compare runs/base curve.csv --tolerance 1e-3
  tessera compare runs/base runs/base-2 --json | jq .parted
  tessera compare --layouts ranks=1 ranks=4,shard.level=zero3 recipes/quickstart.toml --set train.batch=8 --float64
  tessera compare --layouts ranks=1 "ranks=2; shard.units=stem=zero2, head=replicate" recipes/quickstart.toml)";

struct Side {
  fs::path folder;  // empty: a curve alone
  fs::path table;
  monitor::Curves curves;
};

Side open_side(const std::string& path) {
  Side side;
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) side.folder = path;
  side.table = side.folder.empty() ? fs::path(path) : side.folder / "metrics.csv";
  side.curves = monitor::parse_curves(read_file(side.table), side.table.string());
  return side;
}

/// Nothing where one of the two is a curve alone or has no such file.
bool both_have(const Side& a, const Side& b, const char* name) {
  std::error_code ignored;
  return !a.folder.empty() && !b.folder.empty() && fs::exists(a.folder / name, ignored) &&
         fs::exists(b.folder / name, ignored);
}

std::vector<std::string> recipe_differences(const Side& a, const Side& b) {
  if (!both_have(a, b, "recipe.toml")) return {};
  auto lines = recipe::difference(recipe::read_recipe(a.folder / "recipe.toml", {}),
                                  recipe::read_recipe(b.folder / "recipe.toml", {}));
  std::erase_if(lines, [](const std::string& line) { return line.starts_with("run.dir: "); });  // always
  return lines;
}

nlohmann::json environment_of(const Side& side) {
  const fs::path path = side.folder / "environment.json";
  try {
    return nlohmann::json::parse(read_file(path)).flatten();
  } catch (const nlohmann::json::exception& error) {
    user_error({.where = "compare", .problem = concat(path.string(), " is not valid JSON: ", error.what())});
  }
}

std::vector<std::string> environment_differences(const Side& a, const Side& b) {
  if (!both_have(a, b, "environment.json")) return {};
  const nlohmann::json ours = environment_of(a), theirs = environment_of(b);
  nlohmann::json keys = ours;
  keys.update(theirs);
  std::vector<std::string> lines;
  for (const auto& [key, unused] : keys.items()) {
    if (launch::is_set_for_ranks(key.substr(key.rfind('/') + 1))) continue;
    const auto text = [&key = key](const nlohmann::json& side) {
      return side.contains(key) ? json_text(side.at(key)) : "nothing";
    };
    if (text(ours) != text(theirs))
      lines.push_back(concat(key.substr(1), ": ", text(ours), " -> ", text(theirs)));
  }
  return lines;
}

nlohmann::ordered_json as_json(const monitor::Pair& pair) {
  return {{"step", pair.step},
          {"a", pair.a},
          {"b", pair.b},
          {"difference", pair.difference()},
          {"relative", pair.relative()}};
}

void print_json(const monitor::Comparison& found, const std::vector<std::string>& recipe,
                const std::vector<std::string>& environment) {
  nlohmann::ordered_json json = {{"rows", found.rows}, {"only_a", found.only_a}, {"only_b", found.only_b}};
  json["parted"] = nullptr;
  if (const auto* first = found.first_parting()) {
    json["parted"] = as_json(*first->parted);
    json["parted"]["kind"] = first->kind;
    json["parted"]["column"] = first->column;
  }
  json["columns"] = nlohmann::ordered_json::array();
  for (const auto& column : found.columns) {
    nlohmann::ordered_json row = {{"kind", column.kind},
                                  {"column", column.column},
                                  {"judged", column.judged},
                                  {"rows", column.rows},
                                  {"largest", as_json(column.largest)},
                                  {"parted", nullptr}};
    if (column.parted) row["parted"] = as_json(*column.parted);
    json["columns"].push_back(row);
  }
  json["recipe"] = recipe;
  json["environment"] = environment;
  std::cout << json_text(json, 2) << std::endl;
}

void print_list(const char* what, const std::vector<std::string>& lines) {
  if (lines.empty()) return;
  std::printf("\n%s (a -> b):\n", what);
  for (const std::string& line : lines) std::printf("  %s\n", line.c_str());
}

void print_text(const Side& a, const Side& b, double tolerance, const monitor::Comparison& found) {
  std::printf("a: %s\nb: %s\n%s rows in both, %s in a alone, %s in b alone\n\n", a.table.c_str(),
              b.table.c_str(), human_count(found.rows).c_str(), human_count(found.only_a).c_str(),
              human_count(found.only_b).c_str());
  if (const auto* first = found.first_parting()) {
    std::printf("they part at step %s: %s of the %s is %.9g and %.9g (relative difference %.2e)\n\n",
                human_count(first->parted->step).c_str(), first->column.c_str(),
                first->kind == "eval" ? "evaluation" : "training", first->parted->a, first->parted->b,
                first->parted->relative());
  } else if (found.rows > 0) {
    std::printf("they never part by more than %g\n\n", tolerance);
  }
  std::printf("%-6s %-20s %8s %14s %10s %10s %10s\n", "kind", "column", "rows", "largest diff.", "relative",
              "at step", "part at");
  for (const auto& column : found.columns) {
    const std::string parted = !column.judged  ? "not judged"
                               : column.parted ? std::to_string(column.parted->step)
                                               : "never";
    std::printf("%-6s %-20s %8ld %14.6g %10.2e %10ld %10s\n", column.kind.c_str(), column.column.c_str(),
                static_cast<long>(column.rows), column.largest.difference(), column.largest.relative(),
                static_cast<long>(column.largest.step), parted.c_str());
  }
}

int compare_runs(const CompareOptions& options) {
  const double tolerance = options.tolerance.value_or(0);
  const Side a = open_side(options.a), b = open_side(options.b);
  const monitor::Comparison found = monitor::compare(a.curves, b.curves, tolerance);
  if (found.rows == 0) {
    user_error(
        {.where = "compare",
         .problem = concat(a.table.string(), " (", a.curves.rows.size(), " rows) and ", b.table.string(),
                           " (", b.curves.rows.size(), " rows) have no step in common")});
  }
  const auto recipe = recipe_differences(a, b), environment = environment_differences(a, b);
  if (options.json) {
    print_json(found, recipe, environment);
    return kExitDone;
  }
  print_text(a, b, tolerance, found);
  print_list("recipe keys that differ", recipe);
  print_list("environment that differs", environment);
  return kExitDone;
}

/// `a` is the recipe.
int compare_layouts(const CompareOptions& options) {
  const auto refuse = [](const std::string& problem, const std::string& expected, const std::string& hint) {
    user_error({.where = "compare", .problem = problem, .expected = expected, .hint = hint});
  };
  if (!options.b.empty()) {
    refuse(concat("--layouts takes one recipe, and '", escape(options.b), "' is given as well"),
           "--layouts A B RECIPE", "put quotes around a layout that contains spaces");
  }
  const launch::Ranks ranks = launch::ranks_from_environment();
  if (ranks.world > 1) {
    refuse(concat("--layouts runs all ranks of both layouts in one process, but ", ranks.launcher,
                  " has started ", ranks.world, " ranks"),
           "one process", "start it without a launcher");
  }
  launch::FileWatchdog files(first_file_limit(options.job.sets), ranks.rank);
  train::CompareLayoutsJob job = options.job;
  job.a = options.layouts.at(0);
  job.b = options.layouts.at(1);
  job.recipe = options.a;
  job.tolerance = options.tolerance;
  job.json = options.json;
  job.files = &files;
  return engine(Waiting::kSleep).compare_layouts(job);
}

/// What is missing, and options of the other kind of comparison, which have no effect.
void check_arguments(const CLI::App& command, const CompareOptions& options) {
  const auto missing = [](const char* what) {
    user_error({.where = "compare",
                .problem = concat(what, " is missing"),
                .expected = "two run folders or CSV files, or --layouts A B RECIPE"});
  };
  if (!options.layouts.empty()) {
    if (options.a.empty()) missing("the recipe");
    return;
  }
  for (const char* name : {"--set", "--steps", "--float64", "--all"}) {
    if (command.count(name) == 0) continue;
    user_error({.where = "compare",
                .problem = concat(name, " has no effect on a comparison of runs"),
                .hint = "remove it, or add --layouts A B"});
  }
  if (options.a.empty()) missing("a");
  if (options.b.empty()) missing("b");
}

void add_layout_options(CLI::App& command, CompareOptions& options) {
  command
      .add_option(
          "--layouts", options.layouts,
          "Compare training steps of a recipe under two layouts: plan files, or settings ranks=N,KEY=VALUE")
      ->type_name("A B")
      ->expected(2)
      ->allow_extra_args(false);
  command
      .add_option("--set", options.job.sets,
                  "With --layouts: set a recipe key for both layouts; may be repeated, the last value of a "
                  "key counts")
      ->expected(1)
      ->allow_extra_args(false)
      ->take_all();
  command.add_option("--steps", options.job.steps, "With --layouts: number of training steps (default: 1)")
      ->check(CLI::Range(int64_t{1}, kMostComparedSteps));
  command.add_flag("--float64", options.job.float64,
                   "With --layouts: compute in float64, so that differences are faults and not rounding");
  command.add_flag("--all", options.job.all,
                   "With --layouts: print every tensor instead of the first that differs");
}

}  // namespace

Action add_compare(CLI::App& app) {
  auto options = std::make_shared<CompareOptions>();
  CLI::App* command = app.add_subcommand(
      "compare", "Find where two runs diverge, or which tensor two layouts of a recipe compute differently");
  command->add_option(
      "a", options->a,
      "Run folder, or CSV file with columns named as in metrics.csv; with --layouts the recipe file");
  command->add_option("b", options->b, "Run folder, or CSV file with columns named as in metrics.csv");
  add_layout_options(*command, *options);
  command
      ->add_option(
          "--tolerance", options->tolerance,
          "Relative difference up to which values count as equal (default: 0; layouts: by precision)")
      ->check(number_between(0, kLargestTolerance));
  command->add_flag("--json", options->json, "Print the comparison as JSON");
  command->footer(kCompareFooter);
  return [options, command] {
    check_arguments(*command, *options);
    return options->layouts.empty() ? compare_runs(*options) : compare_layouts(*options);
  };
}

}  // namespace tessera::cli
