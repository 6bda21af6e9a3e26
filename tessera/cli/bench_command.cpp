// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <memory>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/cli/bench_scaling.h"
#include "tessera/cli/commands.h"
#include "tessera/cli/engine.h"
#include "tessera/cli/first_file_limit.h"
#include "tessera/cli/output_file.h"
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
  std::string kernels, requests;
};

CLI::App* add(CLI::App& bench, Common& options, const char* name, const char* description) {
  options.command = name;
  CLI::App* command = bench.add_subcommand(name, description);
  command->add_option("--model", options.model, "Name of the model to measure, see `tessera models`")
      ->capture_default_str();
  command->add_option("--batch", options.batch, "Images per rank")->capture_default_str();
  command
      ->add_option("--rounds", options.rounds,
                   "Number of measurements; step prints medians, shard prints minima")
      ->capture_default_str();
  command->add_option("--procs", options.procs,
                      "Number of ranks to start on this host (default: those of the launcher, or one)");
  command
      ->add_option("--set", options.sets,
                   "Set a recipe key, such as --set shard.level=zero2; may be repeated")
      ->expected(1)
      ->allow_extra_args(false)
      ->take_all();
  command->add_flag("--json", options.json, "Print the results as JSON");
  command->add_option("--output", options.output, "Also write the results as JSON to this file");
  return command;
}

/// Before anything is measured: afterwards the figures would be lost. "": nothing is written.
void check_output(const Common& options, const std::string& option, const std::string& file) {
  if (!file.empty()) check_output_file(options.where().c_str(), file, /*force=*/true, option);
}

/// Runs `measure` on every rank: those of a launcher, or local ones that this process starts.
int on_ranks(const Common& options, const std::vector<std::string>& arguments,
             const std::function<int(const launch::Ranks&)>& measure) {
  check_procs(options.where().c_str(), options.procs);
  const int64_t procs = options.procs.value_or(1);
  const launch::Ranks ranks = launch::ranks_from_environment();
  auto files = std::make_unique<launch::FileWatchdog>(first_file_limit(options.sets), ranks.rank);
  if (ranks.rank == 0) check_output(options, "--output", options.output);  // it alone writes
  if (procs > 1 && ranks.launcher != "local") {
    files.reset();  // a process that forks may have one thread only
    launch::LocalOptions local;
    local.procs = procs;
    return launch::run_local(local, arguments);
  }
  check_at_least_1(options.where(), "--rounds", options.rounds);
  check_at_least_1(options.where(), "--batch", options.batch);
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
  check_output(options, "--kernels", options.kernels);
  if (!options.kernels.empty() && options.kernels == options.output) {
    user_error({.where = options.where(),
                .problem = concat("--output and --kernels are both ", options.output),
                .expected = "two different files"});
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
    job.requests = options.requests;
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
    R"(Runs forward and backward on random images, without the optimizer, in four variants by turns: with overlapping
communication (T), with shard.prefetch = 0 and no overlap (T0), computation only (C), and communication only (M).
hidden share = (T0 - T) / min(C, M); it is 1 if communication and computation overlap completely.

Examples:
  tessera bench shard --model S/16 --procs 2
  tessera bench shard --model S/16 --procs 2 --set shard.level=zero2)";

constexpr const char* kStepFooter =
    R"(Measures the step of `tessera train`: forward, backward, clipping at 1.0 and AdamW with fp32 master weights, on one
image in memory instead of a data set. TFLOP/s counts 3 x the FLOPs of forward, without recomputation. It is compared
with the rate of the model's widest matrix product alone, and with the rate for operands that stay in registers. The step
runs on a GPU if there is one (--set run.device=cpu for the CPU). Two further steps count the kinds of operations.
docs/performance.md explains the output.

With --requests another program decides when steps are taken, so that it can measure several layouts by turns. Rank 0
reads lines such as "3" from the file, and prints {"step_seconds": [s, s, s], "slowed": false} after three steps; "slowed"
says whether anything else slowed a core when they began or ended, and is left out where ranks share cores. At the end of
the file it prints the peak memory of each rank. Images are loaded as in a training.

Examples:
  tessera bench step --model B/16 --batch 16
  tessera bench step --model S/16 --batch 16 --dtype fp32
  tessera bench step --model B/16 --batch 8 --procs 2 --set run.threads=1)";

constexpr const char* kScalingFooter =
    R"(Runs `tessera bench step` once for each number of stages, tensor-parallel degree and number of ranks that both
together divide. run.threads is the number of cores / the largest number of ranks, so that every rank has the same number
of threads. With stages a step has as many images as without; they are cut into at most 4 micro-batches for each stage,
and the column "batch per rank" is the size of one. The column efficiency is images/s per rank, relative to the first row.

Examples:
  tessera bench scaling --ranks 1,2 --model Ti/16 --batch 8 --weak
  tessera bench scaling --ranks 1,2,4 --model Ti/16 --batch 16 --strong
  tessera bench scaling --ranks 1,2 --tensor 1,2 --model S/16 --batch 16 --strong
  tessera bench scaling --ranks 1,2 --pipeline 1,2 --model S/16 --batch 16 --strong)";

std::shared_ptr<ScalingOptions> add_scaling(CLI::App& bench) {
  auto scaling = std::make_shared<ScalingOptions>();
  CLI::App* scaling_command =
      bench.add_subcommand("scaling", "Measure a training step on several numbers of ranks");
  scaling_command->add_option("--ranks", scaling->ranks, "Numbers of local ranks to measure, such as 1,2,4")
      ->delimiter(',')
      ->capture_default_str();
  scaling_command
      ->add_option("--tensor", scaling->tensor,
                   "Tensor-parallel degrees to measure (parallel.tensor), such as 1,2")
      ->delimiter(',')
      ->capture_default_str();
  scaling_command
      ->add_option("--pipeline", scaling->pipeline,
                   "Numbers of pipeline stages to measure (parallel.pipeline), such as 1,2")
      ->delimiter(',')
      ->capture_default_str();
  auto* weak = scaling_command->add_flag("--weak", scaling->weak,
                                         "Use --batch images on each rank: weak scaling (the default)");
  scaling_command->add_flag("--strong", scaling->strong, "Use --batch images over all ranks: strong scaling")
      ->excludes(weak);
  scaling_command->add_option("--model", scaling->model, "Name of the model to measure, see `tessera models`")
      ->capture_default_str();
  scaling_command
      ->add_option("--batch", scaling->batch, "Images per rank, or with --strong images over all ranks")
      ->capture_default_str();
  scaling_command
      ->add_option("--rounds", scaling->rounds, "Number of steps measured for each number of ranks")
      ->capture_default_str();
  scaling_command
      ->add_option("--set", scaling->sets,
                   "Set a recipe key, such as --set shard.level=zero2; may be repeated")
      ->expected(1)
      ->allow_extra_args(false)
      ->take_all();
  scaling_command->add_flag("--json", scaling->json, "Print the results as JSON");
  scaling_command->footer(kScalingFooter);
  return scaling;
}

}  // namespace

Action add_bench(CLI::App& app, std::vector<std::string> arguments) {
  CLI::App* bench = app.add_subcommand("bench", "Measure the training speed of this machine");
  bench->require_subcommand(1);

  auto shard = std::make_shared<Common>();
  add(*bench, *shard, "shard", "Measure how much communication overlaps with computation")
      ->footer(kShardFooter);

  auto step = std::make_shared<StepOptions>();
  step->batch = 16;
  CLI::App* step_command = add(*bench, *step, "step", "Measure a training step and where its time goes");
  step_command
      ->add_option("--dtype", step->dtype,
                   "Compute dtype: bf16, fp32 or auto (bf16 on GPUs and on CPUs with fast bf16, else fp32)")
      ->capture_default_str();
  step_command->add_flag("--recompute", step->recompute,
                         "Recompute the activations of blocks in backward (shard.recompute)");
  step_command->add_flag("--quiet", step->quiet, "Print nothing; for use with --output");
  step_command->add_option(
      "--kernels", step->kernels,
      "Profile two more steps and write calls and time of each kernel to this JSON file");
  auto* requests = step_command->add_option(
      "--requests", step->requests,
      "File or named pipe: take the number of steps in each of its lines; prints JSON lines");
  for (const char* other : {"--rounds", "--json", "--output", "--quiet", "--kernels"})
    requests->excludes(step_command->get_option(other));
  step_command->footer(kStepFooter);

  const auto scaling = add_scaling(*bench);

  bench->footer(R"(
Examples:
  tessera bench step --model B/16 --batch 16
  tessera bench scaling --ranks 1,2 --model Ti/16)");  // after its subcommands, which would inherit it

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
