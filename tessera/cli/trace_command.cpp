// SPDX-License-Identifier: Apache-2.0
// `tessera trace RUN`: a traced step of a run as a picture.
#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/text.h"
#include "tessera/cli/commands.h"
#include "tessera/monitor/number.h"
#include "tessera/monitor/step_picture.h"
#include "tessera/plan/plan.h"
#include "tessera/recipe/recipe.h"

namespace tessera::cli {
namespace fs = std::filesystem;
namespace {

struct TraceOptions {
  std::string run, output;
  std::optional<int64_t> step;
};

constexpr const char* kTrace = "trace";

/// A file of the run folder. Errors: UserError with this hint where it is missing.
std::string read_from(const fs::path& run, const char* name, const char* hint) {
  std::error_code ignored;
  if (!fs::is_regular_file(run / name, ignored)) {
    user_error({.where = kTrace,
                .problem = concat("there is no ", name, " in ", run.string()),
                .expected = "the folder of a run that was trained with --trace",
                .hint = hint});
  }
  return read_file(run / name);
}

/// The trace of a pretended run has one rank, and the plan all.
void refuse_pretended(const fs::path& run) {
  std::error_code ignored;
  if (!fs::is_regular_file(run / "summary.json", ignored)) return;
  const auto summary = nlohmann::json::parse(read_file(run / "summary.json"), nullptr, false);
  if (!summary.is_object() || !summary.contains("pretended")) return;
  user_error({.where = kTrace,
              .problem = concat(run.string(), " is a run of --pretend-world, whose other ranks did nothing"),
              .expected = "the folder of a run of real ranks",
              .hint = concat("open ", (run / "trace.json").string(), " in ui.perfetto.dev")});
}

int draw_picture(const TraceOptions& options) {
  const fs::path run = options.run;
  refuse_pretended(run);
  const std::string trace = read_from(run, "trace.json", "train with --trace 10:12 to trace steps 10 to 12");
  const std::string plan_json = read_from(run, "plan.json", "");
  const std::string toml = read_from(run, "recipe.toml", "");
  const plan::Plan plan = plan::plan_from_json(plan_json, (run / "plan.json").string());
  const recipe::Recipe recipe = recipe::parse_recipe(toml, (run / "recipe.toml").string(), ".", {});
  const auto timeline = monitor::read_step_timeline(trace, (run / "trace.json").string(), options.step);
  const std::string picture = monitor::draw_step(recipe.name, plan, timeline);
  const fs::path file = options.output.empty() ? run / "trace.svg" : fs::path(options.output);
  write_file_atomic(file, picture);
  std::cout << "wrote " << file.string() << " (step " << timeline.step << ", " << plan.world
            << (plan.world == 1 ? " rank" : " ranks") << ")\n";
  if (plan.stages > 1) {
    const monitor::ScheduleTime time = monitor::schedule_time(timeline, plan);
    std::cout << "passes: " << human_seconds(time.measured) << ", "
              << monitor::print("%.3f", time.measured / time.simulated)
              << " times what their schedule takes at their mean times and without messages ("
              << human_seconds(time.simulated) << ")\n";
  }
  return kExitDone;
}

}  // namespace

Action add_trace(CLI::App& app) {
  auto options = std::make_shared<TraceOptions>();
  CLI::App* command = app.add_subcommand(
      "trace", "Draw a traced step: ranks, pipeline stages, and forward and backward passes over time");
  command->add_option("run", options->run, "Run folder, such as runs/quickstart")->required();
  command->add_option(
      "-o,--output", options->output,
      "SVG file to write; an existing file is replaced (default: trace.svg in the run folder)");
  command->add_option("--step", options->step, "Step to draw (default: the last traced step)");
  command->footer(R"(
Reads trace.json, plan.json and recipe.toml of the run folder. Every browser opens the picture. To look at single
operations, open trace.json in ui.perfetto.dev.

Examples:
  tessera train recipes/quickstart.toml --procs 2 --set parallel.pipeline=2 --trace 10:12 --set run.dir=runs/stages
  tessera trace runs/stages
  tessera trace runs/stages --step 11 -o step-11.svg)");
  return [options] { return draw_picture(*options); };
}

}  // namespace tessera::cli
