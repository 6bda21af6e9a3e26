#include <CLI/CLI.hpp>
#include <memory>

#include "tessera/base/error.h"
#include "tessera/cli/commands.h"
#include "tessera/cli/engine.h"
#include "tessera/launch/launch.h"

namespace tessera::cli {
namespace {

struct BenchShardOptions {
  std::string model = "B/16", output;
  int64_t batch = 8, rounds = 5, procs = 0;
  std::vector<std::string> sets;
  bool json = false;
};

int bench_shard(const BenchShardOptions& options, const std::vector<std::string>& arguments) {
  if (options.procs < 0) user_error("bench.shard", "--procs of at least 1: got ", options.procs);
  const launch::Ranks ranks = launch::ranks_from_environment();
  if (options.procs > 1 && ranks.launcher != "local") {
    launch::LocalOptions local;
    local.procs = options.procs;
    return launch::run_local(local, arguments);
  }
  if (options.rounds < 1) user_error("bench.shard", "--rounds of at least 1: got ", options.rounds);
  train::BenchShardJob job;
  job.recipe = recipe::parse_recipe(
      concat("name = \"bench\"\n[model]\npreset = \"", options.model, "\"\n[data]\nsource = \"fake:1\"\n",
             "[train]\nsteps = 1\nbatch_per_rank = ", options.batch, "\n"),
      "bench shard", ".", options.sets);
  job.rounds = options.rounds;
  job.json = options.json;
  job.output = options.output;
  launch::install_signal_handlers();
  return engine().bench_shard(job, ranks);
}

}  // namespace

Action add_bench(CLI::App& app, std::vector<std::string> arguments) {
  auto options = std::make_shared<BenchShardOptions>();
  CLI::App* bench = app.add_subcommand("bench", "Measure this machine with Tessera's own work");
  bench->require_subcommand(1);
  CLI::App* command =
      bench->add_subcommand("shard", "How much of the communication hides behind computation");
  command->add_option("--model", options->model, "A size of `tessera models`")->capture_default_str();
  command->add_option("--batch", options->batch, "Images on each rank")->capture_default_str();
  command->add_option("--rounds", options->rounds, "Measurements of each kind; medians are shown")
      ->capture_default_str();
  command->add_option("--procs", options->procs, "Local ranks to start (without: the launcher's)");
  command->add_option("--set", options->sets, "Change a recipe key: --set shard.level=zero2 (repeatable)")
      ->expected(1)
      ->allow_extra_args(false)
      ->take_all();
  command->add_flag("--json", options->json, "Print JSON");
  command->add_option("--output", options->output, "Also write the JSON to this file");
  command->footer(
      "Forward and backward of random images, without the optimizer, four ways in turn: with gathers ahead "
      "and\n"
      "reductions behind (T), with prefetch 0 where nothing overlaps (T0), computation alone (C), and the "
      "same\n"
      "messages alone (M). hidden share = (T0 - T) / min(C, M): 1 when all that can hide does.");
  return [options, arguments = std::move(arguments)] { return bench_shard(*options, arguments); };
}

}  // namespace tessera::cli
