// SPDX-License-Identifier: Apache-2.0
// `tessera eval`: a trained model on any number of ranks.
#include <ATen/ATen.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/json_text.h"
#include "tessera/base/text.h"
#include "tessera/base/version.h"
#include "tessera/base/warn.h"
#include "tessera/data/class_difference.h"
#include "tessera/data/split.h"
#include "tessera/eager/agreement.h"
#include "tessera/eager/backend.h"
#include "tessera/eager/device.h"
#include "tessera/eager/mesh_world.h"
#include "tessera/eager/session.h"
#include "tessera/eager/state.h"
#include "tessera/eager/trained_model.h"
#include "tessera/loop/evaluation.h"
#include "tessera/monitor/evaluation_report.h"
#include "tessera/monitor/number.h"
#include "tessera/plan/spans.h"
#include "tessera/train/commands.h"
#include "tessera/train/features.h"

namespace tessera::train {
namespace fs = std::filesystem;
namespace {

// Of `--output-dir`: a matrix of 8 MB a thousand classes, which the ranks add up.
constexpr int64_t kMostConfusionClasses = 2048;

bool needs_training_split(const EvalJob& job) { return job.neighbours > 0 || job.probe; }
bool wants_features(const EvalJob& job) { return !job.features.empty() || needs_training_split(job); }

/// Errors: UserError where weights without a classifier are to do what needs one.
void check_classifier(const eager::TrainedModel& trained, const EvalJob& job) {
  if (trained.has_classifier()) return;
  const bool head = std::ranges::find(job.units, "head") != job.units.end();
  if (wants_features(job) && !head && job.output_dir.empty()) return;
  const char* needs = !wants_features(job) ? "logits and top-1 need"
                      : head               ? "--units head needs"
                                           : "--output-dir needs";
  user_error({.where = "train.eval",
              .problem = concat(trained.weights->origin, " has no classifier, which ", needs),
              .expected = "weights with a classifier, or --features, --knn or --probe without --output-dir "
                          "and --units head",
              .hint = "train.init_from begins the training of a classifier on these weights"});
}

/// "bf16", "bf16 with fp8 linear layers": top-1 may differ in the second decimal between them.
std::string computed_in(const recipe::Recipe& recipe, at::Device device) {
  const std::string dtype = eager::dtype_name(eager::resolve_dtype(recipe.precision.compute, device));
  return recipe.precision.linear == recipe::Linear::kFp8 ? dtype + " with fp8 linear layers" : dtype;
}

nlohmann::ordered_json to_json(const loop::Evaluation& result) {
  const monitor::EvalMetrics& metrics = result.metrics;
  return {{"top1", metrics.top1},       {"top5", metrics.top5},
          {"loss", metrics.loss},       {"ece", result.figures.calibration_error},
          {"samples", metrics.samples}, {"seconds", metrics.seconds}};
}

/// Whether the model has an output for every class of the data. Where it has not, that is an error unless
/// features are asked for.
bool has_outputs_for(const eager::TrainedModel& trained, const data::Source& source, const EvalJob& job,
                     const std::string& split, const eager::Warn& warn) {
  if (!trained.has_classifier()) return false;
  const recipe::Recipe& recipe = trained.recipe;
  const int64_t outputs = recipe.model.classes();
  const auto found = static_cast<int64_t>(source.classes().size());
  if (found <= outputs) return true;
  const std::string problem = concat("split ", split, " of ", recipe.data.source, " has ", found,
                                     " classes and the model ", outputs, " outputs");
  if (!wants_features(job)) {
    user_error({.where = "train.eval",
                .problem = problem,
                .expected = concat("data of at most ", outputs, " classes"),
                .hint = "evaluate other data: --set data.source=..., --split; --features, --knn and --probe "
                        "need no classifier"});
  }
  if (!job.output_dir.empty()) {
    user_error({.where = "train.eval",
                .problem = concat("--output-dir needs top-1, and ", problem),
                .expected = concat("data of at most ", outputs, " classes, or no --output-dir")});
  }
  warn(concat(problem, ": no top-1 is computed, only features"));
  return false;
}

/// Warns where top-1 means less than it seems to. `known`: the classes that the weights name. Returns whether
/// top-1 can be computed: where the data has them in another order that is an error, unless features are
/// asked for.
/// (More than 5 parameters: the classes of weights and of data, and whom to tell.)
bool compare_classes(const eager::TrainedModel& trained, const std::vector<std::string>& known,
                     const data::Source& source, const EvalJob& job, const std::string& split,
                     const eager::Warn& warn) {
  const recipe::Recipe& recipe = trained.recipe;
  const auto difference = data::class_difference(known, source.classes());
  if (difference && difference->other_order && wants_features(job) && job.output_dir.empty()) {
    warn(concat(recipe.data.source, " has other classes than the weights (", difference->text,
                "): no top-1 is computed, only features"));
    return false;
  }
  data::check_same_classes(known, source.classes(), recipe.data.source, warn);
  const std::string unnamed =
      data::unnamed_classes(trained.path.string(), known, recipe.data.source, source.classes());
  if (!unnamed.empty()) warn(unnamed);
  const auto found = static_cast<int64_t>(source.classes().size());
  const int64_t outputs = recipe.model.classes();
  if (found == 0 || found >= outputs) return true;
  warn(concat("split ", split, " of ", recipe.data.source, " has ", found, " classes and the model ", outputs,
              " outputs: ", outputs - found, outputs - found == 1 ? " is" : " are",
              " of no class, and an image that gets one of them counts as wrong"));
  return true;
}

/// A mistake whose image cannot be read any more is shown as a blank.
monitor::EvaluationReport::Shown show(const data::Source& source, int64_t channels,
                                      const monitor::Mistake& mistake) {
  monitor::EvaluationReport::Shown shown{mistake, source.sample_name(mistake.sample), {}};
  try {
    shown.picture = loop::picture(source, mistake.sample, channels, mistake.truth, mistake.judgement);
  } catch (const UserError&) {
    shown.picture.truth = std::to_string(mistake.truth);
    shown.picture.prediction = std::to_string(mistake.judgement.prediction);
    shown.picture.confidence = mistake.judgement.confidence;
  }
  return shown;
}

// (More than 5 parameters: what the pages of the folder show.)
void write_folder(const EvalJob& job, const eager::TrainedModel& trained, const std::string& split,
                  const data::Source& source, const std::vector<std::string>& known,
                  const loop::Evaluation& result) {
  const recipe::Recipe& recipe = trained.recipe;
  monitor::EvaluationReport report;
  report.title = recipe.name;
  report.checkpoint = trained.path.string();
  report.split = split;
  report.facts = {{"checkpoint", trained.path.string()},
                  {"weights", job.ema ? "moving average" : "trained"},
                  {"data", concat(recipe.data.source, ", split ", split)},
                  {"model", arch::describe(recipe.model)},
                  {"evaluation took", human_seconds(result.metrics.seconds)},
                  {"tessera", concat(build_info().version, " (", build_info().commit, ")")}};
  report.figures = result.figures;
  report.classes =
      eager::class_names(source.classes().empty() ? known : source.classes(), recipe.model.classes());
  for (const monitor::Mistake& mistake : result.mistakes) {
    report.mistakes.push_back(show(source, recipe.model.channels(), mistake));
  }
  monitor::write_evaluation(job.output_dir, report);
}

struct FeatureInput {
  eager::TrainState& state;
  const data::Source& source;
  const data::Source* train;  // null where neither classifier was asked for
  const data::LoaderOptions& loader;
  int64_t batch;
  mesh::Mesh& mesh;
};

/// Writes the features of the evaluated split, classifies them by those of the training split (k nearest
/// neighbours, linear probe) and adds the results to `json` and the log. Collective.
void look_at_features(const EvalJob& job, const FeatureInput& input, Log& log, nlohmann::ordered_json& json) {
  const auto& [state, source, train, loader, batch, mesh] = input;
  const Features here = extract_features(state, source, loader, batch, job.units, mesh);
  const bool first = mesh.rank() == 0;
  if (first && !job.features.empty()) {
    write_features(job.features, here, source, json["compute"].get<std::string>());
    log.info(concat("  features   ", job.features));
  }
  if (train == nullptr) return;
  const Features known = extract_features(state, *train, loader, batch, {}, mesh);
  if (!first) return;
  const int64_t classes = classes_of(known, here);
  const auto tell = [&](const char* key, const std::string& what, double top1) {
    json[key] = top1;
    char line[96];
    std::snprintf(line, sizeof line, "%s top-1 %.2f %%", what.c_str(), top1);
    log.info(line);
  };
  const auto stop = [&input] {
    input.mesh.note_progress();  // the other ranks wait at the end
    return launch::stop_requested();
  };
  if (job.neighbours > 0) {
    const double top1 = nearest_neighbours_top1(known, here, job.neighbours, classes, stop);
    tell("knn_top1", concat(job.neighbours, " nearest neighbours:"), top1);
  }
  if (job.probe) tell("probe_top1", "linear probe:", linear_probe_top1(known, here, classes, stop));
}

/// Of the options those that decide what the ranks compute together; files are rank 0's alone to write.
std::string command_of(const EvalJob& job, const std::string& split) {
  std::string text = concat("eval --split ", split);
  if (job.ema) text += " --ema";
  if (!job.output_dir.empty()) text += concat(" --output-dir, mistakes ", job.mistakes);
  if (!job.features.empty()) text += " --features";
  for (const auto& unit : job.units) text += concat(" --units ", unit);
  if (job.neighbours > 0) text += concat(" --knn ", job.neighbours);
  if (job.probe) text += " --probe";
  return text;
}

/// An evaluation on one rank. Its methods are its life, in their order.
class EvalRun {
 public:
  EvalRun(const EvalJob& job, const launch::Ranks& ranks)
      : job_(job),
        ranks_(ranks),
        // Beside JSON no line of progress, but every warning, and what `load` says of foreign weights.
        log_(ranks.rank == 0, job.json ? nullptr : stdout),
        notes_(ranks.rank == 0, job.json ? stderr : stdout) {}
  EvalRun(const EvalRun&) = delete;
  EvalRun& operator=(const EvalRun&) = delete;

  int run() {
    open();
    eager::before_meeting(recipe::timeout_of(recipe().run), ranks_, [&] { prepare(); });
    meet();
    return eager::guarded([&] { return evaluate(); }, mesh_, [] { return "evaluating"; },
                          "per rank: a smaller train.eval_batch would save activations");
  }

 private:
  const recipe::Recipe& recipe() const { return trained_.recipe; }

  void open() {
    eager::before_meeting(recipe::timeout_of(recipe::RunRecipe()), ranks_, [&] {
      trained_ = eager::open_trained_model(job_.checkpoint, ranks_.world, job_.sets, warn_);
      check_classifier(trained_, job_);
    });
    eager::choose_precision(trained_.recipe, job_.sets, wants_features(job_));
    if (job_.files != nullptr) job_.files->set_limit(recipe::timeout_of(recipe().run));
    log_.info(concat("evaluating ", trained_.path.string()));
    if (const std::string note = launch::threads_note(recipe().run.threads); !note.empty())
      log_.info(concat("  compute threads: ", note));
    split_ = job_.split.empty() ? recipe().data.val : job_.split;
  }

  /// What this rank finds out alone: threads, device, layout, data.
  void prepare() {
    threads_ = eager::set_threads(recipe(), ranks_);
    device_ = eager::choose_device(recipe(), ranks_);
    plan_ = eager::make_plan(recipe(), ranks_.world);
    eager::warn_of_layout(recipe(), plan_, job_.sets, warn_);
    source_ = data::open_splits(recipe().data.source, split_, eager::source_options(recipe(), warn_));
    has_outputs_ = has_outputs_for(trained_, *source_, job_, split_, warn_);
    if (needs_training_split(job_)) train_ = eager::open_training(recipe());
  }

  void meet() {
    const mesh::Fact path = {"the weights", trained_.path.string(),
                             "name the same run, checkpoint or file on every rank"};
    mesh_ = eager::connect(recipe(), plan_, ranks_, [&] {
      return eager::joined_facts(
          {{eager::command_fact(command_of(job_, split_)), path},
           eager::computing_facts(recipe(), plan_, device_),
           eager::weights_facts("the weights", trained_.path),
           eager::data_facts(split_, *source_),
           train_.source ? eager::data_facts("data.train", *train_.source) : mesh::Facts{}});
    });
  }

  int evaluate() {
    const auto telling = eager::tell_progress(job_.files, *mesh_);
    const auto state = eager::assemble(recipe(), plan_, *mesh_, /*with_optimizer=*/false, device_);
    load(*state, *mesh_, trained_, job_.ema, notes_);
    const bool judged =
        has_outputs_ && compare_classes(trained_, state->classes, *source_, job_, split_, warn_);
    const loop::EvaluateOptions options = evaluate_options();
    data::LoaderOptions loader = eager::loader_options(recipe(), ranks_, threads_, log_);
    eager::load_for(state->plan, &loader);
    eager::deliver_for(device_, &loader);
    loader.give_up = launch::stop_requested;
    loop::Evaluation result;
    if (judged) result = judge(*state, loader, options);
    nlohmann::ordered_json json = {{"samples", source_->size()}};
    if (judged) json = to_json(result);
    const std::string dtype = computed_in(recipe(), device_);
    json["compute"] = dtype;
    json["checkpoint"] = trained_.path.string();
    if (wants_features(job_)) {
      look_at_features(job_, {*state, *source_, train_.source.get(), loader, options.batch, *mesh_}, log_,
                       json);
    }
    if (ranks_.rank == 0) write(result, state->classes, json);
    say(judged, result, dtype);
    mesh_->world().barrier("the end");
    return kExitDone;
  }

  loop::EvaluateOptions evaluate_options() const {
    loop::EvaluateOptions options;
    const recipe::TrainRecipe& train = recipe().train;
    options.batch = train.eval_batch > 0       ? train.eval_batch
                    : train.batch_per_rank > 0 ? train.batch_per_rank
                                               : recipe::resolve_batch(train, 1).per_rank;
    options.stop = launch::stop_requested;
    if (!job_.output_dir.empty()) {
      options.keep_mistakes = job_.mistakes;
      options.most_confusion_classes = kMostConfusionClasses;
    }
    return options;
  }

  loop::Evaluation judge(eager::TrainState& state, const data::LoaderOptions& loader,
                         const loop::EvaluateOptions& options) {
    eager::StateEvaluator evaluator(state);
    eager::MeshWorld world(*mesh_);
    loop::Evaluation result =
        loop::evaluate(evaluator, *source_, recipe().data.transform, loader, options, world);
    if (result.stopped)
      user_error({.where = "train.eval", .problem = "the evaluation was stopped by a signal"});
    const int64_t broken = result.figures.broken;
    if (broken > 0) log_.warn(concat(broken, " broken samples count as wrong"));
    return result;
  }

  void write(const loop::Evaluation& result, const std::vector<std::string>& classes,
             const nlohmann::ordered_json& json) const {
    if (!job_.output_dir.empty()) write_folder(job_, trained_, split_, *source_, classes, result);
    if (!job_.output.empty()) write_file_atomic(job_.output, json_text(json, 2) + "\n");
    if (job_.json) std::cout << json_text(json, 2) << std::endl;
  }

  void say(bool judged, const loop::Evaluation& result, const std::string& dtype) {
    if (!judged) {
      log_.info(concat("features of ", source_->size(), " images of ", split_, ", computed in ", dtype,
                       "; no top-1"));
    } else {
      log_.info(monitor::print(
          "top-1 %.2f %%, top-5 %.2f %%, loss %.4f over %ld images of %s in %s, computed in %s",
          result.metrics.top1, result.metrics.top5, result.metrics.loss,
          static_cast<long>(result.metrics.samples), split_.c_str(),
          human_seconds(result.metrics.seconds).c_str(), dtype.c_str()));
    }
    if (!job_.output_dir.empty())
      log_.info(concat("  page       ", (fs::path(job_.output_dir) / monitor::kPageFile).string()));
  }

  const EvalJob& job_;
  const launch::Ranks& ranks_;
  Log log_, notes_;
  const eager::Warn warn_ = [this](const std::string& line) { log_.warn(line); };
  eager::TrainedModel trained_;
  std::string split_;
  int64_t threads_ = 0;
  at::Device device_ = at::kCPU;
  plan::Plan plan_;
  std::unique_ptr<data::Source> source_;
  data::MixedSource train_;
  bool has_outputs_ = false;
  std::unique_ptr<mesh::Mesh> mesh_;
};

}  // namespace

int eval(const EvalJob& job, const launch::Ranks& ranks) { return EvalRun(job, ranks).run(); }

}  // namespace tessera::train
