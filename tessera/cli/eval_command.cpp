// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/warn.h"
#include "tessera/cli/commands.h"
#include "tessera/cli/engine.h"
#include "tessera/cli/first_file_limit.h"
#include "tessera/cli/image_list.h"
#include "tessera/launch/file_watchdog.h"
#include "tessera/launch/launch.h"

namespace tessera::cli {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kMostClasses = 1'000'000, kMostMistakes = 100'000, kMostNeighbours = 1'000'000;

struct EvalOptions {
  train::EvalJob job;
  std::optional<int64_t> procs;
};

/// Looked at before ranks start and LibTorch is loaded: what can hold no weights at all.
void check_place(const char* command, const std::string& checkpoint) {
  std::error_code failed;
  const fs::file_type type = fs::status(checkpoint, failed).type();
  if (type == fs::file_type::directory || type == fs::file_type::regular) return;
  const bool missing = type == fs::file_type::not_found;
  const std::string found = missing  ? " does not exist"
                            : failed ? " cannot be read: " + failed.message()
                                     : " is neither a folder nor a file";
  const std::string near = missing ? nearest_in_folder(checkpoint) : "";
  user_error({.where = command,
              .problem = checkpoint + found,
              .expected = "a run's folder, a checkpoint's folder or a file of weights",
              .hint = near.empty() ? "" : concat("did you mean ", near, "?")});
}

int evaluate(const EvalOptions& options, const std::vector<std::string>& arguments) {
  check_procs("eval", options.procs);
  const launch::Ranks ranks = launch::ranks_from_environment();
  const bool starts_ranks = options.procs > 1 && ranks.launcher != "local";
  if (!starts_ranks) launch::install_signal_handlers();
  auto files = std::make_unique<launch::FileWatchdog>(first_file_limit(options.job.sets), ranks.rank);
  check_place("eval", options.job.checkpoint);
  if (starts_ranks) {
    files.reset();  // a process that forks may have one thread only
    if (ranks.world > 1)
      user_error("eval", "either --procs or a launcher: ", ranks.launcher, " has started ranks");
    launch::LocalOptions local;
    local.procs = *options.procs;
    return launch::run_local(local, arguments);
  }
  train::EvalJob job = options.job;
  job.files = files.get();
  return engine().eval(job, ranks);
}

}  // namespace

Action add_eval(CLI::App& app, std::vector<std::string> arguments) {
  auto options = std::make_shared<EvalOptions>();
  CLI::App* command =
      app.add_subcommand("eval", "Evaluate a checkpoint or a file of weights, on any number of ranks");
  command
      ->add_option(
          "checkpoint", options->job.checkpoint,
          "A run's folder (its best checkpoint), a checkpoint's, or weights (.safetensors, .pth, .npz, "
          "a Hugging Face folder)")
      ->required();
  command->add_option("--split", options->job.split, "Split to evaluate (default: the recipe's data.val)");
  command->add_option("--set", options->job.sets, "Change a recipe key, for example data.source (repeatable)")
      ->expected(1)
      ->allow_extra_args(false)
      ->take_all();
  command->add_option("--procs", options->procs, "Local ranks to start");
  command->add_flag("--ema", options->job.ema, "The moving average of the weights (ema.decay)");
  command->add_flag("--json", options->job.json, "Print JSON");
  command->add_option("--output", options->job.output, "Also write the JSON to this file");
  command->add_option("--output-dir", options->job.output_dir,
                      "Write metrics.json, per_class.csv, confusion.csv, mistakes.csv and report.html here");
  command
      ->add_option("--mistakes", options->job.mistakes,
                   "Number of worst mistakes in the files of --output-dir")
      ->default_val(48)
      ->check(CLI::Range(int64_t{0}, kMostMistakes));
  command->add_option("--features", options->job.features,
                      "Write what the classifier reads of every image to this safetensors file");
  command
      ->add_option("--units", options->job.units,
                   "With --features: also the outputs of these units, such as blocks.3,blocks.7")
      ->delimiter(',');
  command
      ->add_option("--knn", options->job.neighbours,
                   "Also evaluate a classifier by so many nearest neighbours in data.train (20 is usual)")
      ->check(CLI::Range(int64_t{1}, kMostNeighbours));
  command->add_flag("--probe", options->job.probe, "Also evaluate a linear classifier trained on data.train");
  command->footer(R"(
  tessera eval runs/quickstart --procs 2
  tessera eval runs/flowers --output-dir results          tables, and the worst mistakes as pictures
  tessera eval runs/flowers --set data.source=folder:/data/other-flowers --split test --json
  tessera eval vit_small.safetensors --set data.source=folder:/data/imagenet --set data.eval_crop=center

A file of weights has no recipe: --set names the data and how its images are cut (mean and std are the file's, or those
usual with its kind; docs/weights.md).)");
  return [options, arguments = std::move(arguments)] { return evaluate(*options, arguments); };
}

Action add_predict(CLI::App& app) {
  auto job = std::make_shared<train::PredictJob>();
  CLI::App* command = app.add_subcommand("predict", "Say what is in image files");
  command
      ->add_option("checkpoint", job->checkpoint,
                   "A run's folder (its best checkpoint), a checkpoint's, or weights")
      ->required();
  command
      ->add_option(
          "images", job->images,
          "JPEG or PNG files, folders of them (with all subfolders), patterns such as 'photos/*.jpg'")
      ->required();
  command
      ->add_option("--set", job->sets,
                   "Change a recipe key: model.heads of a file of weights, ... (repeatable)")
      ->expected(1)
      ->allow_extra_args(false)
      ->take_all();
  command->add_option("--top", job->top, "How many classes to print")
      ->default_val(5)
      ->check(CLI::Range(int64_t{1}, kMostClasses));
  command->add_flag("--ema", job->ema, "The moving average of the weights (ema.decay)");
  CLI::Option* json = command->add_flag("--json", job->json, "Print JSON; notes and warnings go to stderr");
  command->add_flag("--csv", job->csv, "Print CSV; notes and warnings go to stderr")->excludes(json);
  command->footer(R"(
  tessera predict runs/quickstart photo.jpg another.png --top 3
  tessera predict runs/quickstart photos/ --csv > predictions.csv

An image that cannot be read is named, the others are predicted, and the exit code is 5. It is 2 where none could be read.)");
  return [job] {
    launch::FileWatchdog files(first_file_limit(job->sets), /*rank=*/0);
    job->files = &files;
    check_place("predict", job->checkpoint);
    job->images = list_images(job->images, [](const std::string& line) { warn(line); });
    return engine(Waiting::kSleep).predict(*job);
  };
}

}  // namespace tessera::cli
