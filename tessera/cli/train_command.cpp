// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <thread>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/one_line.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/names.h"
#include "tessera/cli/commands.h"
#include "tessera/cli/engine.h"
#include "tessera/cli/fake_data.h"
#include "tessera/cli/first_file_limit.h"
#include "tessera/cli/number_checks.h"
#include "tessera/cli/pinned_plan.h"
#include "tessera/launch/file_watchdog.h"
#include "tessera/launch/launch.h"
#include "tessera/recipe/default_source.h"
#include "tessera/recipe/last_set.h"
#include "tessera/recipe/run_folder.h"

namespace tessera::cli {
namespace fs = std::filesystem;
namespace {

constexpr const char* kRestarted = "TESSERA_RESTARTED";  // set for ranks that their parent starts again
constexpr const char* kSearch = "search";
constexpr auto kBeforeRestart = std::chrono::seconds(1);

struct TrainOptions {
  std::string recipe;
  std::vector<std::string> sets;
  std::string resume, trace, fake_data;
  std::optional<int64_t> procs;
  std::optional<int64_t> pretend_world;
  std::optional<int64_t> pretend_rank;
  int64_t pretend_steps = 1, trial_steps = 0, max_restarts = 0;
  double pretend_gbits = 25, pretend_latency = 50;  // Gbit/s, microseconds
  bool dry_run = false, force = false, must_resume = false;
  double rate = 0, expected_step = 0;
  std::string plan, profile, memory;  // "", "search" or a file; of a search
  bool searches_plan() const { return plan == kSearch; }
};

/// `--resume RUN_FOLDER` without a recipe continues that run with its own.
void take_recipe_from_run(TrainOptions& options) {
  if (!options.recipe.empty()) return;
  const fs::path run = options.resume;
  if (options.resume.empty()) {
    user_error({.where = "train",
                .problem = "neither a recipe nor --resume RUN_FOLDER is given",
                .hint = "recipes/ has examples"});
  }
  if (checkpoint::names::is_of_the_run(options.resume)) {
    user_error({.where = "train",
                .problem = concat("--resume ", options.resume, " is given without a recipe"),
                .expected = "the recipe whose newest run is meant, or --resume RUN_FOLDER",
                .hint = concat("tessera train RECIPE --resume ", options.resume,
                               ", or --resume runs/NAME for the newest checkpoint of that run")});
  }
  std::error_code failed;
  if (!fs::exists(run / "recipe.toml", failed)) {
    user_error(
        {.where = "train",
         .problem = concat(run.string(), " has no recipe.toml", failed ? concat(": ", failed.message()) : ""),
         .expected = "a recipe file or --resume RUN_FOLDER",
         .hint = "name the folder of a run, or a recipe"});
  }
  options.recipe = (run / "recipe.toml").string();
  options.sets.insert(options.sets.begin(), "run.dir=\"" + fs::absolute(run).string() + "\"");
  options.resume = "latest";
  options.must_resume = true;
}

/// Names the recipe of a resumed run, and adds generated data to the settings.
void complete_recipe(TrainOptions& options) {
  take_recipe_from_run(options);
  if (!options.fake_data.empty()) options.sets.push_back(fake_source(options.fake_data));
}

/// A name with a slip is told before data are opened and ranks start.
void check_resume(const std::string& resume) {
  std::error_code ignored;
  if (resume.empty() || checkpoint::names::is_of_the_run(resume) || fs::exists(resume, ignored)) return;
  std::string near = nearest(resume, {"latest", "best"});
  if (near.empty()) near = nearest_in_folder(resume);
  user_error({.where = "train",
              .problem = concat("--resume ", resume, " names no checkpoint"),
              .expected = "latest, best, a step, or the folder of a checkpoint or of a run",
              .hint = near.empty() ? "" : concat("did you mean ", near, "?")});
}

void refuse_two_plans(const TrainOptions& options) {
  const auto other = recipe::last_set(options.sets, "parallel.plan");
  if (options.plan.empty() || !other || other->empty() || *other == R"("")") return;
  user_error(
      {.where = "train",
       .problem = concat("--plan ", options.plan, " and --set parallel.plan=", *other, " both name a plan"),
       .expected = "only one of them",
       .hint = "remove one"});
}

train::TrainJob make_job(TrainOptions options) {
  complete_recipe(options);
  check_resume(options.resume);
  refuse_two_plans(options);
  if (!options.plan.empty() && !options.searches_plan())
    options.sets.push_back(concat("parallel.plan=\"", escape(options.plan), '"'));
  if (!options.trace.empty()) options.sets.push_back("run.trace=\"" + escape(options.trace) + "\"");
  train::TrainJob job;
  job.recipe = recipe::read_recipe(options.recipe, options.sets);
  recipe::check_default_source(job.recipe, options.recipe);
  job.resume = options.resume;
  job.must_resume = options.must_resume;
  if (std::getenv(kRestarted) != nullptr) {  // goes on from what the start before has saved
    job.resume = "latest";
    job.must_resume = false;
  }
  job.force = options.force;
  job.dry_run = options.dry_run;
  job.rate = options.rate;
  job.expected_step = options.expected_step;
  job.pretend_steps = options.pretend_steps;
  job.trial_steps = options.trial_steps;
  if (job.trial_steps > 0) job.recipe.name += "-trial";  // the name of its folder
  return job;
}

/// A rank or the network failed, or the program; not what the user asked for, and no stop.
bool may_be_mended_by_restart(int code) { return code == kExitCommunication || code == kExitInternal; }

/// Without options that take one value each.
std::vector<std::string> without(const std::vector<std::string>& arguments,
                                 const std::set<std::string>& names) {
  std::vector<std::string> kept;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const size_t equals = arguments[i].find('=');
    if (!names.contains(arguments[i].substr(0, equals))) {
      kept.push_back(arguments[i]);
    } else if (equals == std::string::npos) {
      ++i;
    }
  }
  return kept;
}

SearchRequest search_request(TrainOptions options) {
  complete_recipe(options);
  SearchRequest request;
  request.query = {.recipe = options.recipe,
                   .profile = options.profile,
                   .sets = options.sets,
                   .ranks = *options.procs,
                   .ranks_per_host = *options.procs};
  request.memory = options.memory;
  return request;
}

/// The arguments of ranks that train the searched plan.
std::vector<std::string> with_searched_plan(const TrainOptions& options, const fs::path& folder,
                                            const std::vector<std::string>& arguments) {
  const SearchRequest request = search_request(options);
  const PinnedPlan pinned = pinned_plan(request, folder, !options.resume.empty());
  std::vector<std::string> changed =
      without(arguments, {"--plan", "--profile", "--memory", "--expected-step"});
  for (const std::string& set : pinned.sets) changed.push_back("--set=" + set);
  changed.push_back(concat("--expected-step=", pinned.seconds));
  return changed;
}

/// Ranks that start again would make a folder that was removed.
void check_in_place(const recipe::RunFolder& folder) {
  const std::string fault = folder.locked ? recipe::folder_fault(folder.path, *folder.locked) : "";
  if (!fault.empty()) throw UserError(fault);
}

/// `files` ends before ranks start: a process that forks may have one thread only.
int run_local_ranks(const TrainOptions& options, const train::TrainJob& job,
                    std::unique_ptr<launch::FileWatchdog> files, std::vector<std::string> arguments) {
  // Else every rank refuses it. (The stages of a pipeline are the plan's.)
  const recipe::ParallelRecipe& parallel = job.recipe.parallel;
  if (parallel.pipeline.stages == 1 && parallel.plan.empty() && !options.searches_plan())
    static_cast<void>(recipe::resolve_batch(job.recipe.train, *options.procs));
  if (options.searches_plan()) check_search(search_request(options), job.recipe, !job.resume.empty());
  const recipe::RunFolder folder = recipe::claim_run_folder(job.recipe, job.resume);
  if (!folder.note.empty()) std::fprintf(stderr, "warning: %s\n", one_line(folder.note).c_str());
  recipe::share_with_children(folder);
  launch::LocalOptions local;
  local.procs = *options.procs;
  local.log_dir = (folder.path / "logs").string();
  try {
    const fs::path checkpoints =
        job.recipe.checkpoint.dir.empty() ? folder.path / "checkpoints" : fs::path(job.recipe.checkpoint.dir);
    const std::set<int64_t> before = checkpoint::complete_steps(checkpoints);
    files.reset();
    if (options.searches_plan()) arguments = with_searched_plan(options, folder.path, arguments);
    bool stopped = false;
    int code = launch::run_local(local, arguments, &stopped);
    for (int64_t restart = 1; restart <= options.max_restarts && !stopped && may_be_mended_by_restart(code);
         ++restart) {
      // A checkpoint that --resume names is the start again until this command has saved one.
      const bool goes_on = options.resume.empty() || checkpoint::complete_steps(checkpoints) != before;
      std::fprintf(stderr,
                   "warning: the ranks failed with exit code %d: restart %ld of %ld, with --resume %s\n",
                   code, static_cast<long>(restart), static_cast<long>(options.max_restarts),
                   goes_on ? "latest" : options.resume.c_str());
      if (goes_on) ::setenv(kRestarted, "1", 1);
      std::this_thread::sleep_for(kBeforeRestart);
      check_in_place(folder);
      code = launch::run_local(local, arguments, &stopped);
    }
    if (code == kExitUser) recipe::discard_run_folder(folder);
    return code;
  } catch (const StoppedMeasuring& stopped) {
    std::fprintf(stderr, "stopped while the machine was measured: nothing was trained or saved\n");
    recipe::discard_run_folder(folder);
    return stopped.exit_code;
  } catch (const UserError&) {
    recipe::discard_run_folder(folder);
    throw;
  }
}

/// `--resume=` is not `--resume`: a script's variable was empty, and a run of its own is not what it wants.
void refuse_empty_resume(const std::vector<std::string>& arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const bool next_is_empty = i + 1 < arguments.size() && arguments[i + 1].empty();
    if (arguments[i] != "--resume=" && !(arguments[i] == "--resume" && next_is_empty)) continue;
    user_error({.where = "train",
                .problem = "--resume has an empty value",
                .expected = "latest, best, a step, or the folder of a checkpoint or of a run",
                .hint = "--resume alone means latest"});
  }
}

/// One rank of a world whose other ranks do not exist.
launch::Ranks pretended_ranks(const TrainOptions& options, const launch::Ranks& real) {
  if (*options.pretend_world < 2 || options.pretend_steps < 1) {
    user_error({.where = "train",
                .problem = concat("--pretend-world is ", *options.pretend_world, " and --pretend-steps ",
                                  options.pretend_steps),
                .expected = "at least 2 for --pretend-world and at least 1 for --pretend-steps"});
  }
  const int64_t rank = options.pretend_rank.value_or(0);
  if (rank < 0 || rank >= *options.pretend_world) {
    user_error({.where = "train",
                .problem = concat("--pretend-rank is ", rank),
                .expected = concat("0 to ", *options.pretend_world - 1, ", a rank of --pretend-world ",
                                   *options.pretend_world)});
  }
  if (!(options.pretend_gbits >= 0 && options.pretend_latency >= 0 && options.pretend_latency <= 1e6)) {
    user_error({.where = "train",
                .problem = concat("--pretend-gbits is ", options.pretend_gbits, " and --pretend-latency ",
                                  options.pretend_latency),
                .expected = "at least 0 for both, and at most 1000000 microseconds of latency"});
  }
  if (options.procs || real.world > 1) {
    user_error({.where = "train",
                .problem = concat("--pretend-world runs one process, but ",
                                  options.procs ? "--procs" : concat("launcher ", real.launcher),
                                  " asks for ", std::max(options.procs.value_or(1), real.world)),
                .hint = "remove one of the two"});
  }
  if (!options.resume.empty()) {
    user_error({.where = "train",
                .problem = "--pretend-world cannot resume: it neither loads nor saves checkpoints",
                .hint = "remove --resume"});
  }
  launch::Ranks ranks;
  ranks.rank = rank;
  ranks.world = *options.pretend_world;
  ranks.launcher = "pretend";
  ranks.network = {.latency = options.pretend_latency / 1e6,
                   .bytes_per_second = options.pretend_gbits * 1e9 / 8};
  return ranks;
}

/// A search is made once, by the process that starts the ranks.
void check_plan(const TrainOptions& options, const launch::Ranks& ranks) {
  if (!options.searches_plan()) {
    for (const auto& [name, value] :
         {std::pair("--profile", options.profile), std::pair("--memory", options.memory)}) {
      if (value.empty()) continue;
      user_error({.where = "train",
                  .problem = concat(name, ' ', escape(value), " has no effect without --plan search"),
                  .hint = concat("add --plan search, or remove ", name)});
    }
    return;
  }
  const bool is_only_process = ranks.world == 1 && ranks.launcher != "local" && !ranks.pretended();
  if (is_only_process && !options.dry_run) return;
  user_error(
      {.where = "train",
       .problem = concat("--plan search with ", options.dry_run     ? "--dry-run"
                                                : ranks.pretended() ? "--pretend-world"
                                                                    : concat("ranks of ", ranks.launcher)),
       .expected = options.dry_run ? "a training, or --dry-run with a plan file"
                                   : "--procs N, where this process starts the ranks",
       .hint = "search first with tessera plan search, then train with --plan plan.json"});
}

int train(TrainOptions options, const std::vector<std::string>& arguments) {
  if (options.rate != 0 && !options.dry_run)
    user_error(
        {.where = "train", .problem = "--rate needs --dry-run", .hint = "add --dry-run, or remove --rate"});
  launch::Ranks ranks = launch::ranks_from_environment();
  check_procs("train", options.procs);
  if (options.max_restarts > 0 && !options.procs && ranks.launcher != "local") {
    user_error(
        {.where = "train",
         .problem = concat("--max-restarts ", options.max_restarts, " has no effect without --procs"),
         .expected = "local ranks, which this process can start again",
         .hint = "add --procs, or use what the launcher offers (torchrun --max-restarts, sbatch --requeue)"});
  }
  if (options.pretend_rank && !options.pretend_world)
    user_error({.where = "train",
                .problem = concat("--pretend-rank ", *options.pretend_rank, " has no effect alone"),
                .hint = "add --pretend-world N"});
  if (options.pretend_world && options.trial_steps > 0)
    user_error({.where = "train",
                .problem = concat("--trial-steps ", options.trial_steps, " with --pretend-world"),
                .hint = "use --pretend-steps"});
  if (options.trial_steps > 0 && !options.resume.empty())
    user_error({.where = "train",
                .problem = "--trial-steps cannot resume: it saves nothing",
                .hint = "remove --resume"});
  if (options.pretend_world) ranks = pretended_ranks(options, ranks);
  check_plan(options, ranks);
  if (options.searches_plan() && !options.procs) options.procs = 1;
  const bool starts_ranks =
      (options.procs > 1 || (options.procs && (options.max_restarts > 0 || options.searches_plan()))) &&
      ranks.world == 1 && ranks.launcher != "local" && !options.dry_run;
  if (!starts_ranks) launch::install_signal_handlers();  // first of all: a stop asked for early counts
  auto files = std::make_unique<launch::FileWatchdog>(first_file_limit(options.sets), ranks.rank);
  train::TrainJob job = make_job(options);
  job.files = files.get();
  files->set_limit(recipe::timeout_of(job.recipe.run));
  if (options.procs && ranks.launcher != "local") {
    if (ranks.world > 1) {
      refuse_procs("train", *options.procs, ranks.launcher, ranks.world);
    }
    if (options.dry_run) {
      ranks.world = ranks.local_world = *options.procs;
      ranks.launcher = "local";
    } else if (starts_ranks) {
      return run_local_ranks(options, job, std::move(files), arguments);
    }
  }
  return engine().train(job, ranks);
}

void add_layout_options(CLI::App* command, TrainOptions* options) {
  command->add_option("--plan", options->plan,
                      "Plan file to train, or search: find the fastest layout first, within --memory");
  command->add_option("--profile", options->profile,
                      "With --plan search: file of tessera plan profile (default: measured now)");
  command->add_option("--memory", options->memory,
                      "With --plan search: memory of a rank, such as 24GiB (default: 90 % of what is free)");
  command
      ->add_option("--expected-step", options->expected_step,
                   "Predicted seconds of a step: after 20 steps the run says how far it is off")
      ->check(number_between(1e-9, 1e9));
}

/// Of runs that train nothing: one rank of many, a few steps.
void add_trial_options(CLI::App* command, TrainOptions* options) {
  command->add_option(
      "--pretend-world", options->pretend_world,
      "Measure a step of a run on N ranks by running only one of them; nothing is trained or saved");
  command->add_option("--pretend-rank", options->pretend_rank,
                      "Rank that runs with --pretend-world; of a pipeline it decides the stage (default: 0)");
  command->add_option("--pretend-steps", options->pretend_steps,
                      "Number of steps with --pretend-world (default: 1)");
  command
      ->add_option(
          "--trial-steps", options->trial_steps,
          "Make so many steps and nothing else, to see what they cost; nothing is evaluated or saved")
      ->check(CLI::Range(int64_t{1}, int64_t{1'000'000}));
  command->add_option("--pretend-gbits", options->pretend_gbits,
                      "Network rate with --pretend-world, in Gbit/s (default: 25; 0: no limit)");
  command->add_option("--pretend-latency", options->pretend_latency,
                      "Network latency with --pretend-world, in microseconds (default: 50)");
}

}  // namespace

Action add_train(CLI::App& app, std::vector<std::string> arguments) {
  auto options = std::make_shared<TrainOptions>();
  CLI::App* command = app.add_subcommand("train", "Train a model as described by a recipe");
  command->add_option("recipe", options->recipe,
                      "Recipe file (TOML), see `tessera options`; not needed with --resume RUN_FOLDER");
  command
      ->add_option(
          "--set", options->sets,
          "Set a recipe key, such as --set train.epochs=3; may be repeated, the last value of a key counts")
      ->expected(1)
      ->allow_extra_args(false)
      ->take_all();
  add_layout_options(command, options.get());
  command->add_option("--procs", options->procs,
                      "Number of ranks to start on this host (default: those of the launcher, or one)");
  command
      ->add_option(
          "--max-restarts", options->max_restarts,
          "With --procs: how often failed ranks are restarted from the newest checkpoint (default: 0)")
      ->check(CLI::Range(0, 1000));
  add_trial_options(command, options.get());
  command
      ->add_option(
          "--resume", options->resume,
          "Continue from latest (default), best, a step number, or the folder of a checkpoint or run")
      ->expected(0, 1)
      ->default_str("");
  command->add_option(
      "--trace", options->trace,
      "Trace steps FIRST:LAST, such as 10:12, into trace.json of the run folder, for ui.perfetto.dev");
  command->add_flag(kFakeDataFlag, options->fake_data, kFakeDataHelp);
  command->add_flag("--dry-run", options->dry_run,
                    "Print what would be trained, with layout and predicted memory, and exit");
  command
      ->add_option("--rate", options->rate,
                   "With --dry-run: images per second over all ranks, to predict the training time")
      ->check(number_between(1e-6, 1e12));
  command->add_flag("--force", options->force,
                    "Run even if the predicted memory exceeds that of this machine");
  command->footer(R"(
Examples:
  tessera train recipes/quickstart.toml --procs 2 --set train.epochs=2    train for two epochs on two ranks
  tessera train recipes/quickstart.toml --procs 2 --dry-run --rate 1600   print plan, memory and training time
  tessera train --resume runs/quickstart --procs 2                        continue an interrupted run
  tessera train recipes/quickstart.toml --procs 2 --plan search           measure, find a layout, train it

For --rate, `tessera bench step` measures the images per second of a machine.)");
  return [options, command, arguments = std::move(arguments)] {
    refuse_empty_resume(arguments);
    if (command->count("--resume") > 0 && options->resume.empty()) options->resume = "latest";
    return train(*options, arguments);
  };
}

}  // namespace tessera::cli
