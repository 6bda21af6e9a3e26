// SPDX-License-Identifier: Apache-2.0
// `tessera predict`: what a trained model says of image files, on any number of ranks.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "tessera/base/checksum.h"
#include "tessera/base/error.h"
#include "tessera/base/json_text.h"
#include "tessera/base/one_line.h"
#include "tessera/base/text.h"
#include "tessera/base/warn.h"
#include "tessera/base/words.h"
#include "tessera/data/class_difference.h"
#include "tessera/data/class_names.h"
#include "tessera/eager/agreement.h"
#include "tessera/eager/backend.h"
#include "tessera/eager/device.h"
#include "tessera/eager/mesh_world.h"
#include "tessera/eager/session.h"
#include "tessera/eager/stage_passes.h"
#include "tessera/eager/state.h"
#include "tessera/eager/trained_model.h"
#include "tessera/monitor/number.h"
#include "tessera/recipe/last_set.h"
#include "tessera/train/commands.h"

namespace tessera::train {
namespace {

/// One image as a batch. `image`: its place in the list.
data::Batch image_batch(const arch::ModelConfig& model, std::vector<float> pixels, int64_t image) {
  data::Batch batch;
  batch.images = std::move(pixels);
  batch.size = 1;
  batch.channels = model.channels();
  batch.height = batch.width = model.image_size();
  batch.labels = {-1};
  batch.samples = {static_cast<uint64_t>(image)};
  return batch;
}

/// The names of --set data.classes=FILE; none where it is not set.
std::vector<std::string> given_names(const PredictJob& job, const recipe::Recipe& recipe) {
  const bool asked = recipe::last_set(job.sets, "data.classes").has_value();
  if (!asked || recipe.data.classes.empty()) return {};
  auto names = data::read_class_names(local_files(), recipe.data.classes);
  if (static_cast<int64_t>(names.size()) != recipe.model.classes()) {
    user_error({.where = "train.predict",
                .problem = concat("data.classes: ", recipe.data.classes, " names ", names.size(), " classes"),
                .expected = concat(recipe.model.classes(), ", the outputs of the model"),
                .hint = ""});
  }
  return names;
}

/// The given names, which must agree with those saved with the weights, or else these.
std::vector<std::string> choose_names(const std::vector<std::string>& given,
                                      const std::vector<std::string>& saved,
                                      const eager::TrainedModel& trained, const eager::Warn& say) {
  if (given.empty()) {
    if (saved.empty()) {
      say(concat(trained.path.string(),
                 " does not name its classes: labels are printed in their place; "
                 "--set data.classes=FILE names them, one a line"));
    }
    return saved;
  }
  data::check_same_classes(saved, given, trained.recipe.data.classes, say);
  data::SourceOptions options;
  options.warn = say;
  if (saved.empty()) data::warn_of_numeric_names(given, "data.classes", /*from_folders=*/false, options);
  return given;
}

/// What is said about the images, in one of the three forms. Lines for people and of CSV are printed at once.
/// Ranks but rank 0 print nothing.
class Predictions {
 public:
  Predictions(const PredictJob& job, bool prints) : job_(job), prints_(prints) {
    if (prints_ && job.csv) std::printf("image,rank,class,label,probability,error\n");
  }

  void begin(const std::string& image) {
    if (!prints_) return;
    entries_.push_back({{"image", image}, {"predictions", nlohmann::ordered_json::array()}});
    if (!job_.json && !job_.csv) std::printf("%s\n", one_line(image).c_str());
  }
  /// `place`: 1 for the likeliest class.
  void add(int64_t place, const std::string& name, int64_t label, double probability) {
    entries_.back()["predictions"].push_back(
        {{"class", name}, {"label", label}, {"probability", probability}});
    if (job_.csv) {
      std::printf("%s,%ld,%s,%ld,%s,\n", csv_field(image()).c_str(), static_cast<long>(place),
                  csv_field(name).c_str(), static_cast<long>(label), monitor::shortest(probability).c_str());
    } else if (!job_.json) {
      std::printf("  %6.2f %%  %s\n", 100 * probability, one_line(name).c_str());
    }
  }
  void fail(const std::string& problem) {
    ++failed_;
    if (!prints_) return;
    entries_.back()["error"] = problem;
    if (job_.csv) {
      std::printf("%s,,,,,%s\n", csv_field(image()).c_str(), csv_field(problem).c_str());
    } else if (!job_.json) {
      std::printf("  not predicted\n");
    }
    std::fflush(stdout);
    warn(problem);
  }
  void finish() const {
    if (prints_ && job_.json) std::printf("%s\n", json_text(entries_, 2).c_str());
    std::fflush(stdout);
  }
  int64_t failed() const { return failed_; }

 private:
  std::string image() const { return entries_.back()["image"].get<std::string>(); }

  const PredictJob& job_;
  const bool prints_;
  nlohmann::ordered_json entries_ = nlohmann::ordered_json::array();
  int64_t failed_ = 0;
};

/// The exit code, with a warning where it is not 0. Errors: UserError where no image was predicted.
int exit_code(const Predictions& predictions, int64_t all, const eager::Warn& say) {
  if (predictions.failed() == 0) return kExitDone;
  if (predictions.failed() == all) {
    user_error({.where = "predict",
                .problem = concat("none of the ", all, " images could be read (the warnings above say why)"),
                .expected = "",
                .hint = ""});
  }
  say(concat(predictions.failed(), " of ", all, " images were not predicted (exit code ",
             static_cast<int>(kExitPartial), ")"));
  return kExitPartial;
}

/// Predicts images in rounds, in each of them one image for every rank that loads (of the first stage).
class PredictionRounds {
 public:
  /// All outlive it. `names`: of the classes.
  PredictionRounds(const PredictJob& job, eager::TrainState& state, mesh::Mesh& mesh,
                   std::vector<std::string> names)
      : job_(job),
        state_(state),
        mesh_(mesh),
        world_(mesh),
        names_(std::move(names)),
        loading_(eager::StateEvaluator(state).loading(world_)),
        top_(std::min(job.top, state.recipe.model.classes())) {}

  void run(Predictions& predictions) {
    const at::NoGradGuard no_grad;
    const auto all = static_cast<int64_t>(job_.images.size());
    for (int64_t first = 0; first < all; first += loading_.ranks)
      predict(first, std::min(loading_.ranks, all - first), predictions);
  }

 private:
  /// Images first to first + count - 1, at most one for each rank that loads. Collective.
  void predict(int64_t first, int64_t count, Predictions& predictions) {
    std::optional<data::Batch> image;
    std::string problem;
    if (loading_.loads && loading_.rank < count) {
      try {
        image = load(first + loading_.rank);
      } catch (const UserError& error) {
        problem = error.what();
      }
    }
    const std::vector<std::string> problems = mesh_.world().all_gather_text(problem, "unreadable images");
    if (job_.images.size() == 1 && !problems[0].empty()) throw UserError(problems[0]);
    const at::Tensor likeliest = on_rank_0(infer(image), count);
    for (int64_t i = 0; i < count; ++i) {
      predictions.begin(job_.images[static_cast<size_t>(first + i)]);
      const std::string& why_not = problems[static_cast<size_t>(i)];
      why_not.empty() ? say(likeliest, i, predictions) : predictions.fail(why_not);
    }
    if (mesh_.rank() == 0) std::fflush(stdout);
  }

  data::Batch load(int64_t image) const {
    const std::string& path = job_.images[static_cast<size_t>(image)];
    return image_batch(state_.recipe.model, data::load_image_for_eval(path, state_.recipe.data.transform),
                       image);
  }

  /// [1, 2, top] float64, classes and probabilities of this rank's image, zeros where it has none.
  at::Tensor infer(const std::optional<data::Batch>& image) {
    const auto output =
        eager::inference(state_, image ? *image : placeholder_batch(state_), image.has_value());
    at::Tensor likeliest = at::zeros({1, 2, top_}, at::kDouble);
    if (!output.logits.defined() || !output.noted.has_samples) return likeliest;
    const auto [probability, label] = output.logits.to(at::kCPU).softmax(1).select(0, 0).topk(top_);
    likeliest[0][0].copy_(label);
    likeliest[0][1].copy_(probability);
    return likeliest;
  }

  /// [count, 2, top] on rank 0, in the order of the images: the ranks of the last stage know them.
  at::Tensor on_rank_0(const at::Tensor& own, int64_t count) {
    std::vector<int64_t> counts(static_cast<size_t>(mesh_.world_size()));
    const int64_t before = mesh_.world_size() - loading_.ranks;
    std::fill_n(counts.begin() + before, count, 1);
    const int64_t rows = counts[static_cast<size_t>(mesh_.rank())];
    return mesh_.world().gather_rows_to(0, own.narrow(0, 0, rows), counts, "predictions");
  }

  void say(const at::Tensor& likeliest, int64_t image, Predictions& predictions) const {
    if (mesh_.rank() != 0) return;
    for (int64_t k = 0; k < top_; ++k) {
      const auto label = static_cast<int64_t>(likeliest[image][0][k].item<double>());
      predictions.add(k + 1, names_.at(static_cast<size_t>(label)), label,
                      likeliest[image][1][k].item<double>());
    }
  }

  const PredictJob& job_;
  eager::TrainState& state_;
  mesh::Mesh& mesh_;
  eager::MeshWorld world_;
  const std::vector<std::string> names_;
  const loop::LoadingRank loading_;
  const int64_t top_;
};

/// A prediction on one rank. Its methods are its life, in their order.
class PredictRun {
 public:
  PredictRun(const PredictJob& job, const launch::Ranks& ranks)
      : job_(job), ranks_(ranks), log_(ranks.rank == 0, job.json || job.csv ? stderr : stdout) {}
  PredictRun(const PredictRun&) = delete;
  PredictRun& operator=(const PredictRun&) = delete;

  int run() {
    eager::before_meeting(recipe::timeout_of(recipe::RunRecipe()), ranks_, [&] { open(); });
    eager::before_meeting(recipe::timeout_of(recipe().run), ranks_, [&] { prepare(); });
    meet();
    return eager::guarded([&] { return predict(); }, mesh_, [] { return "predicting"; }, "");
  }

 private:
  const recipe::Recipe& recipe() const { return trained_.recipe; }

  void open() {
    trained_ = eager::open_trained_model(job_.checkpoint, ranks_.world, job_.sets, say_);
    if (!trained_.has_classifier()) {
      user_error({.where = "train.predict",
                  .problem = concat(trained_.weights->origin, " has no classifier"),
                  .expected = "weights with a classifier",
                  .hint = "train.init_from begins the training of a classifier on these weights"});
    }
    eager::choose_precision(trained_.recipe, job_.sets, /*features=*/false);
    if (job_.files != nullptr) job_.files->set_limit(recipe::timeout_of(recipe().run));
    if (!job_.json && !job_.csv) log_.info(concat("predicting with ", trained_.path.string()));
  }

  void prepare() {
    eager::set_threads(recipe(), ranks_);
    device_ = eager::choose_device(recipe(), ranks_);
    plan_ = eager::make_plan(recipe(), ranks_.world);
    eager::warn_of_layout(recipe(), plan_, job_.sets, say_);
    names_ = given_names(job_, recipe());
  }

  void meet() {
    mesh_ = eager::connect(recipe(), plan_, ranks_, [&] {
      TextChecksum images;
      for (const std::string& image : job_.images) images.add(image);
      const std::string found = concat(job_.images.size(), " images, checksum ", images.hex());
      return eager::joined_facts(
          {{eager::command_fact(command()), {"the images", found, "give every host the same images"}},
           eager::computing_facts(recipe(), plan_, device_),
           eager::weights_facts("the weights", trained_.path)});
    });
  }

  /// What decides what the ranks compute together.
  std::string command() const {
    return concat("predict ", trained_.path.string(), " --top ", job_.top, job_.ema ? " --ema" : "");
  }

  int predict() {
    const auto telling = eager::tell_progress(job_.files, *mesh_);
    const auto state = eager::assemble(recipe(), plan_, *mesh_, /*with_optimizer=*/false, device_);
    load(*state, *mesh_, trained_, job_.ema, log_);
    const auto names = choose_names(names_, state->classes, trained_, say_);
    Predictions predictions(job_, ranks_.rank == 0);
    PredictionRounds(job_, *state, *mesh_, eager::class_names(names, recipe().model.classes()))
        .run(predictions);
    mesh_->world().barrier("the end");
    predictions.finish();
    return exit_code(predictions, static_cast<int64_t>(job_.images.size()), say_);
  }

  const PredictJob& job_;
  const launch::Ranks& ranks_;
  Log log_;
  const eager::Warn say_ = [this](const std::string& line) { log_.warn(line); };
  eager::TrainedModel trained_;
  at::Device device_ = at::kCPU;
  plan::Plan plan_;
  std::vector<std::string> names_;  // given ones
  std::unique_ptr<mesh::Mesh> mesh_;
};

}  // namespace

int predict(const PredictJob& job, const launch::Ranks& ranks) { return PredictRun(job, ranks).run(); }

}  // namespace tessera::train
