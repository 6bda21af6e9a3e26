// SPDX-License-Identifier: Apache-2.0
// `tessera plan profile RECIPE`: measures what the planner predicts step times from.
#include "tessera/cli/plan_profile_command.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/base/warn.h"
#include "tessera/cli/engine.h"
#include "tessera/cli/first_file_limit.h"
#include "tessera/cli/new_file.h"
#include "tessera/launch/file_watchdog.h"
#include "tessera/launch/launch.h"
#include "tessera/plan/plan.h"

namespace tessera::cli {
namespace {

constexpr const char* kProfileWhere = "cli.plan_profile";
constexpr int64_t kMostProfiledRanks = 256, kMostProfiledBatch = 4096;

struct ProfileOptions {
  std::string recipe, output = "profile.json";
  std::vector<std::string> sets;
  std::optional<int64_t> procs;
  std::vector<int64_t> tensor, batches = {1, 2, 4, 8};
  int64_t rounds = 5;
  bool force = false, json = false;
};

constexpr const char* kProfileFooter = R"(
Trains a model of the recipe's layer sizes with at most 3 blocks, on --procs ranks at the same time, and times forward
and backward of each kind of unit. Then it measures messages between the ranks (4 KiB to 64 MiB), the optimizer and the
data loader. The ranks are threads of this process. Nothing else should run on the machine meanwhile.

Examples:
  tessera plan profile recipes/bv_s16_90ep.toml --procs 2
  tessera plan profile recipes/tv_b16.toml --procs 4 --tensor 1,2,4 --batches 1,4,16 --output host-a.json
  tessera plan profile recipes/tv_b16.toml --set run.threads=8 --set run.shared_memory=false)";

[[noreturn]] void refuse(const std::string& problem, const std::string& expected,
                         const std::string& hint = "") {
  user_error({.where = kProfileWhere, .problem = problem, .expected = expected, .hint = hint});
}

int64_t ranks_of(const ProfileOptions& options, const recipe::Recipe& recipe) {
  constexpr int64_t kRanks = 2;
  const int64_t cores = launch::available_cores(), threads = recipe.run.threads;
  const int64_t ranks =
      options.procs.value_or(threads > 0 ? std::max<int64_t>(1, cores / threads) : std::min(cores, kRanks));
  if (ranks < 1 || ranks > kMostProfiledRanks)
    refuse(concat("--procs is ", ranks), concat("1 to ", kMostProfiledRanks));
  if (ranks * std::max<int64_t>(1, threads) > cores) {
    warn(concat(ranks, " ranks x ", std::max<int64_t>(1, threads), " threads share ", cores,
                cores == 1 ? " core" : " cores", ": a run with a core for each thread is faster"));
  }
  return ranks;
}

/// Can layers be cut over so many ranks?
bool can_cut(const arch::ModelConfig& model, int64_t degree) {
  plan::Plan plan = plan::uniform_plan(model, degree, plan::Level::kReplicate, /*recompute=*/false, 1);
  try {
    plan::set_tensor(&plan, model, {degree, /*adjacent=*/true}, /*keep_gathered=*/true);
    return true;
  } catch (const UserError&) {
    return false;
  }
}

/// Those that were given, or the powers of two that divide the ranks and cut the model.
std::vector<int64_t> tensor_degrees(const ProfileOptions& options, const arch::ModelConfig& model,
                                    int64_t ranks) {
  std::vector<int64_t> degrees = options.tensor;
  for (int64_t degree = 1; options.tensor.empty() && degree <= ranks; degree *= 2) {
    if (ranks % degree == 0 && can_cut(model, degree)) degrees.push_back(degree);
  }
  for (const int64_t degree : degrees) {
    if (degree < 1 || ranks % degree != 0)
      refuse(concat("--tensor has ", degree), concat("degrees that divide the ", ranks, " ranks of --procs"));
    if (!can_cut(model, degree))
      refuse(concat("--tensor has ", degree, ", but no layer of a ", model.family(), " can be cut"), "1");
  }
  return degrees;
}

std::vector<int64_t> sorted_once(std::vector<int64_t> values) {
  std::ranges::sort(values);
  values.erase(std::unique(values.begin(), values.end()), values.end());
  return values;
}

int profile(const ProfileOptions& options) {
  const launch::FileWatchdog files(first_file_limit(options.sets), 0);
  check_at_least_1(kProfileWhere, "--rounds", options.rounds);
  for (const int64_t batch : options.batches) {
    if (batch < 1 || batch > kMostProfiledBatch)
      refuse(concat("--batches has ", batch), concat("1 to ", kMostProfiledBatch, " images"));
  }
  check_new_file(kProfileWhere, options.output, options.force);
  train::PlanProfileJob job;
  job.recipe = recipe::read_recipe(options.recipe, options.sets);
  job.ranks = ranks_of(options, job.recipe);
  job.tensor = sorted_once(tensor_degrees(options, job.recipe.model, job.ranks));
  job.batches = sorted_once(options.batches);
  job.rounds = options.rounds;
  job.json = options.json;
  job.output = options.output;
  launch::end_on_signals();
  return engine().plan_profile(job);
}

}  // namespace

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
                      "Number of ranks of this host (default: cores / run.threads; 2 without run.threads)");
  command
      ->add_option("--tensor", options->tensor,
                   "Tensor-parallel degrees, such as 1,2 (default: powers of 2 that divide --procs)")
      ->delimiter(',');
  command->add_option("--batches", options->batches, "Images of a rank in a micro-batch: sizes to measure")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--rounds", options->rounds, "Number of measurements of each value; medians count")
      ->capture_default_str();
  command->add_option("-o,--output", options->output, "Profile file (JSON) to write")->capture_default_str();
  command->add_flag("--force", options->force, "Replace the profile file if it exists");
  command->add_flag("--json", options->json, "Print the profile as JSON instead of tables");
  command->footer(kProfileFooter);
  return [options] { return profile(*options); };
}

}  // namespace tessera::cli
