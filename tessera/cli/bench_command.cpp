// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/cli/bench_scaling.h"
#include "tessera/cli/commands.h"
#include "tessera/cli/engine.h"
#include "tessera/cli/first_file_limit.h"
#include "tessera/launch/file_watchdog.h"
#include "tessera/launch/launch.h"

namespace tessera::cli {
namespace {

/// What `bench shard` and `bench step` share.
struct Common {
  std::string command, model = "B/16", output;
  int64_t batch = 8, rounds = 5;
  std::optional<int64_t> procs;
  std::vector<std::string> sets;
  bool json = false;

  std::string where() const { return "bench." + command; }
  /// The recipe they measure, and `extra` of its [train] table.
  recipe::Recipe recipe(const std::string& extra, const std::vector<std::string>& more_sets = {}) const {
    std::vector<std::string> all = more_sets;
    all.insert(all.end(), sets.begin(), sets.end());  // the user's win
    return recipe::parse_recipe(
        concat("name = \"bench\"\n[model]\npreset = \"", model, "\"\n[data]\nsource = \"fake:1\"\n",
               "[train]\nsteps = 1\nbatch_per_rank = ", batch, "\n", extra),
        "bench " + command, ".", all);
  }
};

struct StepOptions : Common {
  std::string dtype = "auto";
  bool recompute = false, quiet = false;
  std::string kernels;
};

CLI::App* add(CLI::App& bench, Common& options, const char* name, const char* description) {
  options.command = name;
  CLI::App* command = bench.add_subcommand(name, description);
  command->add_option("--model", options.model, "A size of `tessera models`")->capture_default_str();
  command->add_option("--batch", options.batch, "Images on each rank")->capture_default_str();
  command
      ->add_option("--rounds", options.rounds,
                   "Measurements of each kind; step shows medians, shard the least")
      ->capture_default_str();
  command->add_option("--procs", options.procs, "Local ranks to start (without: the launcher's)");
  command->add_option("--set", options.sets, "Change a recipe key: --set shard.level=zero2 (repeatable)")
      ->expected(1)
      ->allow_extra_args(false)
      ->take_all();
  command->add_flag("--json", options.json, "Print JSON");
  command->add_option("--output", options.output, "Also write the JSON to this file");
  return command;
}

/// Before anything is measured: afterwards the figures would be lost.
void check_output(const std::string& where, const std::string& option, const std::string& file) {
  namespace fs = std::filesystem;
  if (file.empty()) return;
  std::error_code ignored;
  const fs::path path = fs::absolute(file);
  if (path.has_filename() && !fs::is_directory(path, ignored) &&
      fs::is_directory(path.parent_path(), ignored))
    return;
  user_error(where, option, " with the name of a file in a folder that exists: got ", file);
}

/// Runs `measure` on every rank: those of a launcher, or local ones that this process starts.
int on_ranks(const Common& options, const std::vector<std::string>& arguments,
             const std::function<int(const launch::Ranks&)>& measure) {
  check_procs(options.where().c_str(), options.procs);
  const int64_t procs = options.procs.value_or(1);
  const launch::Ranks ranks = launch::ranks_from_environment();
  if (ranks.rank == 0) check_output(options.where(), "--output", options.output);  // it alone writes
  if (procs > 1 && ranks.launcher != "local") {
    launch::LocalOptions local;
    local.procs = procs;
    return launch::run_local(local, arguments);
  }
  if (options.rounds < 1) user_error(options.where(), "--rounds of at least 1: got ", options.rounds);
  if (options.batch < 1) user_error(options.where(), "--batch of at least 1: got ", options.batch);
  const launch::FileWatchdog files(first_file_limit({}), ranks.rank);
  return measure(ranks);
}

int bench_shard(const Common& options, const std::vector<std::string>& arguments) {
  return on_ranks(options, arguments, [&](const launch::Ranks& ranks) {
    train::BenchShardJob job;
    job.recipe = options.recipe("");
    job.rounds = options.rounds;
    job.json = options.json;
    job.output = options.output;
    launch::end_on_signals();
    return engine().bench_shard(job, ranks);
  });
}

recipe::Recipe recipe_of(const StepOptions& options) {
  return options.recipe("clip = 1.0\n", {"precision.compute=" + options.dtype, "optimizer.weight_decay=0.1",
                                         concat("shard.recompute=", options.recompute ? "true" : "false")});
}

int bench_step(const StepOptions& options, const std::vector<std::string>& arguments) {
  check_output(options.where(), "--kernels", options.kernels);
  if (!options.kernels.empty() && options.kernels == options.output) {
    user_error(options.where(), "two files for --output and --kernels: got ", options.output, " for both");
  }
  return on_ranks(options, arguments, [&](const launch::Ranks& ranks) {
    train::BenchStepJob job;
    job.model = options.model;
    job.recipe = recipe_of(options);
    job.rounds = options.rounds;
    job.json = options.json;
    job.quiet = options.quiet;
    job.output = options.output;
    job.kernels = options.kernels;
    launch::end_on_signals();
    return engine().bench_step(job, ranks);
  });
}

// What a step would refuse is refused before the table begins.
void check_steps(const ScalingOptions& scaling) {
  StepOptions step;
  step.command = "scaling";
  step.model = scaling.model;
  step.batch = scaling.batch;
  step.sets = scaling.sets;
  static_cast<void>(recipe_of(step));
}

constexpr const char* kShardFooter =
    R"(Forward and backward of random images, without the optimizer, four ways in turn: with gathers ahead and
reductions behind (T), with prefetch 0 where nothing overlaps (T0), computation alone (C), and the same
messages alone (M). hidden share = (T0 - T) / min(C, M): 1 when all that can hide does.)";

constexpr const char* kStepFooter =
    R"(The step of `tessera train`: forward, backward, clipping at 1.0, AdamW, fp32 master weights; one picture in memory
takes the place of data. TFLOP/s counts what forward computes x 3 (a recomputed forward is no work), beside what the
widest product of the model reaches alone in the same rounds, and what the registers could (operands that never leave
them). It runs where `tessera train` would: on a GPU, if there is one (--set run.device=cpu).
Kinds of operation are counted in two further steps. docs/performance.md explains each.

  tessera bench step --model B/16 --batch 16
  tessera bench step --model S/16 --batch 16 --dtype fp32
  tessera bench step --model B/16 --batch 8 --procs 2 --set run.threads=1)";

constexpr const char* kScalingFooter =
    R"(One `tessera bench step` for each number of ranks, in turn, on this machine's cores (run.threads = cores / ranks of the
largest number, so that a rank is the same everywhere). --weak: --batch images on each rank; --strong: --batch images
over all ranks. efficiency: images/s of a rank beside those of the first row.

  tessera bench scaling --ranks 1,2 --model Ti/16 --batch 8 --weak)";

}  // namespace

Action add_bench(CLI::App& app, std::vector<std::string> arguments) {
  CLI::App* bench = app.add_subcommand("bench", "Measure this machine with Tessera's own work");
  bench->require_subcommand(1);

  auto shard = std::make_shared<Common>();
  add(*bench, *shard, "shard", "How much of the communication hides behind computation")
      ->footer(kShardFooter);

  auto step = std::make_shared<StepOptions>();
  step->batch = 16;
  CLI::App* step_command = add(*bench, *step, "step", "How fast a training step is, and where its time goes");
  step_command
      ->add_option("--dtype", step->dtype,
                   "bf16, fp32 or auto: bf16 on a GPU and where the CPU multiplies it in tiles")
      ->capture_default_str();
  step_command->add_flag("--recompute", step->recompute, "Compute activations again in backward");
  step_command->add_flag("--quiet", step->quiet, "Print nothing (with --output)");
  step_command->add_option("--kernels", step->kernels,
                           "Profile two more steps; write calls and time of each kernel to this JSON file");
  step_command->footer(kStepFooter);

  auto scaling = std::make_shared<ScalingOptions>();
  CLI::App* scaling_command =
      bench->add_subcommand("scaling", "The step on growing numbers of ranks, as a table");
  scaling_command->add_option("--ranks", scaling->ranks, "Numbers of local ranks")
      ->delimiter(',')
      ->capture_default_str();
  auto* weak = scaling_command->add_flag("--weak", scaling->weak, "The same batch on each rank (default)");
  scaling_command->add_flag("--strong", scaling->strong, "The same batch over all ranks")->excludes(weak);
  scaling_command->add_option("--model", scaling->model, "A size of `tessera models`")->capture_default_str();
  scaling_command->add_option("--batch", scaling->batch, "Images on each rank, or (--strong) over all")
      ->capture_default_str();
  scaling_command->add_option("--rounds", scaling->rounds, "Steps measured of each")->capture_default_str();
  scaling_command->add_option("--set", scaling->sets, "Change a recipe key (repeatable)")
      ->expected(1)
      ->allow_extra_args(false)
      ->take_all();
  scaling_command->add_flag("--json", scaling->json, "Print JSON");
  scaling_command->footer(kScalingFooter);

  return [=, arguments = std::move(arguments)] {
    if (bench->got_subcommand("shard")) return bench_shard(*shard, arguments);
    if (bench->got_subcommand("scaling")) {
      check(*scaling);
      check_steps(*scaling);
      return bench_scaling(*scaling);
    }
    return bench_step(*step, arguments);
  };
}

}  // namespace tessera::cli
