// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <filesystem>
#include <functional>
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

struct PredictImagesOptions {
  train::PredictJob job;
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

/// Who computes: the ranks of a launcher, or those that this process starts.
struct RankOptions {
  const char* command;
  const std::optional<int64_t>& procs;
  const std::string& checkpoint;
  const std::vector<std::string>& sets;
};

/// Runs `compute` on every rank. `on_signals`: called first in each of them.
int on_all_ranks(const RankOptions& options, const std::vector<std::string>& arguments,
                 void (*on_signals)(const launch::Ranks&),
                 const std::function<int(const launch::Ranks& ranks, launch::FileWatchdog* files)>& compute) {
  check_procs(options.command, options.procs);
  const launch::Ranks ranks = launch::ranks_from_environment();
  const bool starts_ranks = options.procs > 1 && ranks.launcher != "local";
  if (!starts_ranks) on_signals(ranks);
  auto files = std::make_unique<launch::FileWatchdog>(first_file_limit(options.sets), ranks.rank);
  check_place(options.command, options.checkpoint);
  if (!starts_ranks) return compute(ranks, files.get());
  files.reset();  // a process that forks may have one thread only
  if (ranks.world > 1) refuse_procs(options.command, *options.procs, ranks.launcher, ranks.world);
  launch::LocalOptions local;
  local.procs = *options.procs;
  return launch::run_local(local, arguments);
}

int evaluate(const EvalOptions& options, const std::vector<std::string>& arguments) {
  return on_all_ranks(
      {"eval", options.procs, options.job.checkpoint, options.job.sets}, arguments,
      [](const launch::Ranks&) { launch::install_signal_handlers(); },
      [&](const launch::Ranks& ranks, launch::FileWatchdog* files) {
        train::EvalJob job = options.job;
        job.files = files;
        return engine().eval(job, ranks);
      });
}

/// One process alone keeps the defaults: it ends silently where what it prints goes to `head`.
void end_ranks_on_signals(const launch::Ranks& ranks) {
  if (ranks.world > 1) launch::end_on_signals();
}

int predict(const PredictImagesOptions& options, const std::vector<std::string>& arguments) {
  return on_all_ranks({"predict", options.procs, options.job.checkpoint, options.job.sets}, arguments,
                      end_ranks_on_signals, [&](const launch::Ranks& ranks, launch::FileWatchdog* files) {
                        train::PredictJob job = options.job;
                        job.files = files;
                        job.images = list_images(job.images, [&](const std::string& line) {
                          if (ranks.rank == 0) warn(line);
                        });
                        return engine(Waiting::kSleep).predict(job, ranks);
                      });
}

}  // namespace

Action add_eval(CLI::App& app, std::vector<std::string> arguments) {
  auto options = std::make_shared<EvalOptions>();
  CLI::App* command =
      app.add_subcommand("eval", "Evaluate a checkpoint or a weights file, on any number of ranks");
  command
      ->add_option("checkpoint", options->job.checkpoint,
                   "Run folder (its best checkpoint), checkpoint folder, weights file or Hugging Face folder")
      ->required();
  command->add_option("--split", options->job.split,
                      "Split to evaluate, such as test (default: data.val of the recipe)");
  command
      ->add_option("--set", options->job.sets,
                   "Set a recipe key, such as --set data.source=folder:DIR; may be repeated")
      ->expected(1)
      ->allow_extra_args(false)
      ->take_all();
  command->add_option("--procs", options->procs,
                      "Number of ranks to start on this host (default: those of the launcher, or one)");
  command->add_flag("--ema", options->job.ema,
                    "Use the moving average of the weights (the run needs ema.decay > 0)");
  command->add_flag("--json", options->job.json, "Print the results as JSON");
  command->add_option("--output", options->job.output, "Also write the results as JSON to this file");
  command->add_option(
      "--output-dir", options->job.output_dir,
      "Write metrics.json, per_class.csv, confusion.csv, mistakes.csv and report.html to this folder");
  command
      ->add_option(
          "--mistakes", options->job.mistakes,
          "With --output-dir: number of wrong predictions to list, those with the largest loss first")
      ->default_val(48)
      ->check(CLI::Range(int64_t{0}, kMostMistakes));
  command->add_option(
      "--features", options->job.features,
      "Write features (the classifier's input, float32), labels and image names to this safetensors file");
  command
      ->add_option("--units", options->job.units,
                   "With --features: also write the outputs of these units, such as blocks.3,blocks.7")
      ->delimiter(',');
  command
      ->add_option(
          "--knn", options->job.neighbours,
          "Also evaluate a k-nearest-neighbour classifier on features of data.train, with this k, usually 20")
      ->check(CLI::Range(int64_t{1}, kMostNeighbours));
  command->add_flag("--probe", options->job.probe,
                    "Also evaluate a linear classifier trained on features of data.train (linear probe)");
  command->footer(R"(
Examples:
  tessera eval runs/quickstart --procs 2
  tessera eval runs/flowers --output-dir results          also write tables and an HTML page of the worst mistakes
  tessera eval runs/flowers --set data.source=folder:/data/other-flowers --split test --json
  tessera eval vit_small.safetensors --set data.source=folder:/data/imagenet --set data.eval_crop=center
  tessera eval dinov2.pth --set data.source=folder:/data/flowers --features flowers.safetensors --knn 20

A weights file has no recipe, so --set must give the data set and may give the crop. Mean and std come from the file, or
are the usual ones of its format (docs/weights.md). Weights without a classifier are enough for --features, --knn and
--probe, which compute in float32 unless --set precision.compute=... asks for another dtype.)");
  return [options, arguments = std::move(arguments)] { return evaluate(*options, arguments); };
}

Action add_predict(CLI::App& app, std::vector<std::string> arguments) {
  auto options = std::make_shared<PredictImagesOptions>();
  train::PredictJob* job = &options->job;
  CLI::App* command = app.add_subcommand("predict", "Predict the classes of image files");
  command
      ->add_option("checkpoint", job->checkpoint,
                   "Run folder (its best checkpoint), checkpoint folder, weights file or Hugging Face folder")
      ->required();
  command
      ->add_option("images", job->images,
                   "JPEG or PNG files, folders with their subfolders, or patterns such as 'photos/*.jpg'")
      ->required();
  command
      ->add_option("--set", job->sets,
                   "Set a recipe key, such as --set model.heads=6 for a weights file; may be repeated")
      ->expected(1)
      ->allow_extra_args(false)
      ->take_all();
  command->add_option("--procs", options->procs,
                      "Number of ranks to start on this host (default: those of the launcher, or one)");
  command->add_option("--top", job->top, "Number of classes to print for each image")
      ->default_val(5)
      ->check(CLI::Range(int64_t{1}, kMostClasses));
  command->add_flag("--ema", job->ema, "Use the moving average of the weights (the run needs ema.decay > 0)");
  CLI::Option* json =
      command->add_flag("--json", job->json, "Print JSON to stdout; notes and warnings go to stderr");
  command->add_flag("--csv", job->csv, "Print CSV to stdout; notes and warnings go to stderr")
      ->excludes(json);
  command->footer(R"(
Examples:
  tessera predict runs/quickstart photo.jpg another.png --top 3
  tessera predict runs/quickstart photos/ --csv > predictions.csv
  tessera predict runs/large photos/ --procs 4 --set parallel.pipeline=2     cut the model into stages

With several ranks each of them predicts different images; with stages, the ranks of a stage do.

If some images cannot be read, a warning names them and the exit code is 5. If none can be read, the exit code is 2.)");
  return [options, arguments = std::move(arguments)] { return predict(*options, arguments); };
}

}  // namespace tessera::cli
