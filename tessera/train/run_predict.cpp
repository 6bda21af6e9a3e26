// SPDX-License-Identifier: Apache-2.0
// `tessera predict`: what a trained model says of image files.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/json_text.h"
#include "tessera/base/one_line.h"
#include "tessera/base/text.h"
#include "tessera/base/warn.h"
#include "tessera/base/words.h"
#include "tessera/data/class_difference.h"
#include "tessera/data/class_names.h"
#include "tessera/eager/device.h"
#include "tessera/eager/session.h"
#include "tessera/eager/state.h"
#include "tessera/eager/trained_model.h"
#include "tessera/monitor/number.h"
#include "tessera/recipe/last_set.h"
#include "tessera/train/commands.h"

namespace tessera::train {
namespace {

at::Tensor probabilities(eager::TrainState& state, std::vector<float> pixels) {
  const auto& model = state.recipe.model;
  data::Batch batch;
  batch.images = std::move(pixels);
  batch.size = 1;
  batch.channels = model.channels();
  batch.height = batch.width = model.image_size();
  batch.samples = {0};
  return forward(state, batch, false, 0).to(at::kCPU).softmax(1).select(0, 0);
}

/// The names of --set data.classes=FILE, which must agree with those saved with the weights.
void name_classes(const PredictJob& job, const eager::TrainedModel& trained, eager::TrainState& state) {
  const bool asked = recipe::last_set(job.sets, "data.classes").has_value();
  const recipe::Recipe& recipe = state.recipe;
  if (!asked || recipe.data.classes.empty()) {
    if (state.classes.empty()) {
      warn(concat(trained.path.string(),
                  " does not name its classes: labels are printed in their place; "
                  "--set data.classes=FILE names them, one a line"));
    }
    return;
  }
  auto names = data::read_class_names(local_files(), recipe.data.classes);
  if (static_cast<int64_t>(names.size()) != recipe.model.classes()) {
    user_error({.where = "train.predict",
                .problem = concat("data.classes: ", recipe.data.classes, " names ", names.size(), " classes"),
                .expected = concat(recipe.model.classes(), ", the outputs of the model"),
                .hint = ""});
  }
  data::check_same_classes(state.classes, names, recipe.data.classes, warn);
  data::SourceOptions options;
  options.warn = warn;
  if (state.classes.empty())
    data::warn_of_numeric_names(names, "data.classes", /*from_folders=*/false, options);
  state.classes = std::move(names);
}

/// What is said about the images, in one of the three forms. Lines for people and of CSV are printed at once.
class Predictions {
 public:
  explicit Predictions(const PredictJob& job) : job_(job) {
    if (job.csv) std::printf("image,rank,class,label,probability,error\n");
  }

  void begin(const std::string& image) {
    entries_.push_back({{"image", image}, {"predictions", nlohmann::ordered_json::array()}});
    if (!job_.json && !job_.csv) std::printf("%s\n", one_line(image).c_str());
  }
  void add(int64_t rank, const std::string& name, int64_t label, double probability) {
    entries_.back()["predictions"].push_back(
        {{"class", name}, {"label", label}, {"probability", probability}});
    if (job_.csv) {
      std::printf("%s,%ld,%s,%ld,%s,\n", csv_field(image()).c_str(), static_cast<long>(rank),
                  csv_field(name).c_str(), static_cast<long>(label), monitor::shortest(probability).c_str());
    } else if (!job_.json) {
      std::printf("  %6.2f %%  %s\n", 100 * probability, one_line(name).c_str());
    }
  }
  void fail(const std::string& problem) {
    ++failed_;
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
    if (job_.json) std::printf("%s\n", json_text(entries_, 2).c_str());
    std::fflush(stdout);
  }
  int64_t failed() const { return failed_; }

 private:
  std::string image() const { return entries_.back()["image"].get<std::string>(); }

  const PredictJob& job_;
  nlohmann::ordered_json entries_ = nlohmann::ordered_json::array();
  int64_t failed_ = 0;
};

int predict_images(const PredictJob& job, eager::TrainState& state) {
  const at::NoGradGuard no_grad;
  const std::vector<std::string> names = eager::class_names(state.classes, state.recipe.model.classes());
  Predictions predictions(job);
  for (const std::string& path : job.images) {
    predictions.begin(path);
    std::vector<float> pixels;
    try {
      pixels = data::load_image_for_eval(path, state.recipe.data.transform);
    } catch (const UserError& error) {
      if (job.images.size() == 1) throw;
      predictions.fail(error.what());
      continue;
    }
    const auto [confidence, index] =
        probabilities(state, std::move(pixels)).topk(std::min(job.top, state.recipe.model.classes()));
    for (int64_t k = 0; k < index.numel(); ++k) {
      const auto label = index[k].item<int64_t>();
      predictions.add(k + 1, names.at(static_cast<size_t>(label)), label, confidence[k].item<double>());
    }
    std::fflush(stdout);
  }
  predictions.finish();
  const auto all = static_cast<int64_t>(job.images.size());
  if (predictions.failed() == 0) return kExitDone;
  if (predictions.failed() == all) {
    user_error({.where = "predict",
                .problem = concat("none of the ", all, " images could be read (the warnings above say why)"),
                .expected = "",
                .hint = ""});
  }
  warn(concat(predictions.failed(), " of ", all, " images were not predicted (exit code ",
              static_cast<int>(kExitPartial), ")"));
  return kExitPartial;
}

}  // namespace

int predict(const PredictJob& job) {
  Log log(true, job.json || job.csv ? stderr : stdout);
  eager::TrainedModel trained = eager::open_trained_model(job.checkpoint, 1, job.sets,
                                                          [&](const std::string& line) { log.warn(line); });
  if (!trained.has_classifier()) {
    user_error({.where = "train.predict",
                .problem = concat(trained.weights->origin, " has no classifier"),
                .expected = "weights with a classifier",
                .hint = "train.init_from begins the training of a classifier on these weights"});
  }
  eager::choose_precision(trained.recipe, job.sets, /*features=*/false);
  if (job.files != nullptr) job.files->set_limit(eager::run_timeout(trained.recipe));
  if (!job.json && !job.csv) log.info(concat("predicting with ", trained.path.string()));
  const launch::Ranks alone;
  eager::set_threads(trained.recipe, alone);
  const at::Device device = eager::choose_device(trained.recipe, alone);
  const plan::Plan plan = eager::make_plan(trained.recipe, alone.world);
  const auto mesh = eager::connect(trained.recipe, plan, alone, [] { return mesh::Facts(); });
  return eager::guarded(
      [&] {
        const auto state = eager::assemble(trained.recipe, plan, *mesh, false, device);
        load(*state, *mesh, trained, job.ema, log);
        name_classes(job, trained, *state);
        return predict_images(job, *state);
      },
      *mesh, [] { return "predicting"; }, "");
}

}  // namespace tessera::train
