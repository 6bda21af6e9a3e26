// SPDX-License-Identifier: Apache-2.0
// `tessera plan profile RECIPE`: measures what the planner predicts step times from.
#include "tessera/cli/plan_profile_command.h"

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/cli/engine.h"
#include "tessera/cli/first_file_limit.h"
#include "tessera/cli/output_file.h"
#include "tessera/cli/recipe_and_profile.h"
#include "tessera/launch/file_watchdog.h"
#include "tessera/launch/launch.h"
#include "tessera/recipe/machine.h"

namespace tessera::cli {
namespace {

constexpr const char* kProfileWhere = "cli.plan_profile";
constexpr int64_t kMostProfiledBatch = 4096;

struct ProfileOptions {
  std::string recipe, output = "profile.json", machine;
  std::vector<std::string> sets;
  std::optional<int64_t> procs;
  std::vector<int64_t> tensor, batches;
  int64_t rounds = 5;
  std::optional<double> patience;
  bool force = false, json = false;
};

constexpr const char* kProfileFooter = R"(
Trains a model of the recipe's layer sizes with at most 3 blocks, on --procs ranks at the same time, and times forward
and backward of each kind of unit, and on CPUs how much longer units of a tensor group take with their peers. Then it
measures messages between the ranks (4 KiB to 64 MiB), the optimizer and the data loader. The ranks are threads of this
process. Nothing else should run on the machine meanwhile. On a CPU what is measured while something slows a core, such
as a program on its other hardware thread, is measured again for a while (--patience).

On a GPU one rank computes, whose tensor-parallel peers are pretended. No messages are measured: --machine gives those
between GPUs. Without it predictions are of one rank.

Examples:
  tessera plan profile recipes/bv_s16_90ep.toml --procs 2
  tessera plan profile recipes/tv_b16.toml --procs 4 --tensor 1,2,4 --batches 1,4,16 --output host-a.json
  tessera plan profile recipes/tv_b16.toml --set run.threads=8 --set run.shared_memory=false
  tessera plan profile recipes/tv_b16.toml --set run.device=cuda --machine recipes/machines/h100_sxm.toml)";

void check_patience(double patience) {
  constexpr double kMost = 1000;
  if (patience >= 0 && patience <= kMost) return;
  user_error({.where = kProfileWhere,
              .problem = concat("--patience is ", patience),
              .expected = concat("a number of times, 0 to ", kMost)});
}

int profile(const ProfileOptions& options) {
  const launch::FileWatchdog files(first_file_limit(options.sets), 0);
  check_at_least_1(kProfileWhere, "--rounds", options.rounds);
  check_patience(options.patience.value_or(0));
  for (const int64_t batch : options.batches) {
    if (batch < 1 || batch > kMostProfiledBatch)
      user_error({.where = kProfileWhere,
                  .problem = concat("--batches has ", batch),
                  .expected = concat("1 to ", kMostProfiledBatch, " images")});
  }
  check_output_file(kProfileWhere, options.output, options.force, "--output",
                    {options.recipe, options.machine});
  train::PlanProfileJob job;
  job.recipe = recipe::read_recipe(options.recipe, options.sets);
  job.procs = options.procs;
  job.tensor = options.tensor;
  job.batches = options.batches;
  if (!options.machine.empty())
    job.machine = std::make_shared<const planner::Machine>(recipe::read_machine(options.machine));
  job.rounds = options.rounds;
  job.patience = options.patience;
  job.json = options.json;
  job.output = options.output;
  launch::end_on_signals();
  return engine().plan_profile(job);
}

struct HostsOptions {
  PredictionQuery query;
  std::string output;
  int64_t rounds = 5;
};

constexpr const char* kHostsFooter = R"(
A launcher starts as many ranks on every host as the profile was measured with (tessera plan profile --procs). Messages
(4 KiB to 64 MiB) of groups with ranks on all hosts, and on two if the number of hosts is even, go into the profile; rank 0
reads and writes it. Ranks compute on the CPU and send over TCP.

Example:
  tessera plan profile recipe.toml --procs 4
  srun --nodes=2 --ntasks-per-node=4 --distribution=block tessera plan profile-hosts recipe.toml --profile profile.json
  tessera plan search recipe.toml --profile profile.json --hosts 2x4)";

int profile_hosts(const HostsOptions& options) {
  check_at_least_1("cli.plan_profile_hosts", "--rounds", options.rounds);
  const launch::Ranks ranks = launch::ranks_from_environment();
  const launch::FileWatchdog files(first_file_limit(options.query.sets), ranks.rank);
  train::PlanProfileHostsJob job;
  job.recipe = recipe::read_recipe(options.query.recipe, options.query.sets);
  job.rounds = options.rounds;
  job.output = options.output.empty() ? options.query.profile : options.output;
  job.read_profile = [&] {
    check_output_file("cli.plan_profile_hosts", job.output, options.query.force || options.output.empty());
    return read_predicted(options.query, here()).profile;
  };
  launch::end_on_signals();
  return engine().plan_profile_hosts(job, ranks);
}

}  // namespace

Action add_plan_profile_hosts(CLI::App& plan) {
  CLI::App* command = plan.add_subcommand(
      "profile-hosts", "Measure messages between the hosts of a launched job, and add them to a profile");
  auto options = std::make_shared<HostsOptions>();
  add_recipe_and_profile(command, &options->query);
  add_force(command, &options->query);
  command->add_option("--rounds", options->rounds, "Number of measurements of each value")
      ->capture_default_str();
  command->add_option("-o,--output", options->output, "File (JSON) to write (default: that of --profile)");
  command->footer(kHostsFooter);
  return [options] { return profile_hosts(*options); };
}

Action add_plan_profile(CLI::App& plan) {
  CLI::App* command = plan.add_subcommand(
      "profile", "Measure the passes and messages of a model on this machine, for predicted step times");
  auto options = std::make_shared<ProfileOptions>();
  command->add_option("RECIPE", options->recipe, "Recipe (TOML) of the model to measure")->required();
  command
      ->add_option("--set", options->sets, "Set a recipe key, such as --set model.depth=24; may be repeated")
      ->expected(1)
      ->allow_extra_args(false)
      ->take_all();
  command->add_option("--procs", options->procs,
                      "Number of ranks of this host (default: cores / run.threads, or 2; on a GPU 1)");
  command
      ->add_option("--tensor", options->tensor,
                   "Tensor-parallel degrees, such as 1,2 (default: powers of 2 that divide a host's ranks)")
      ->delimiter(',');
  command
      ->add_option("--batches", options->batches,
                   "Images of a rank in a micro-batch (default: 1,2,4,8; on a GPU 8,32,128)")
      ->delimiter(',');
  command->add_option("--machine", options->machine,
                      "Description (TOML) whose links and slowdowns are taken (default: measured)");
  command->add_option("--rounds", options->rounds, "Number of measurements of each value; means count")
      ->capture_default_str();
  command->add_option("--patience", options->patience,
                      concat("While something else slows a CPU's cores, wait and measure again for at most "
                             "so many times as long as is "
                             "measured (default: ",
                             train::kPatience, ")"));
  command->add_option("-o,--output", options->output, "Profile file (JSON) to write")->capture_default_str();
  command->add_flag("--force", options->force, "Replace the profile file if it exists");
  command->add_flag("--json", options->json, "Print the profile as JSON instead of tables");
  command->footer(kProfileFooter);
  return [options] { return profile(*options); };
}

}  // namespace tessera::cli
