// SPDX-License-Identifier: Apache-2.0
#include "tessera/eager/trained_model.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/base/words.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/eager/backend.h"
#include "tessera/eager/init_from.h"
#include "tessera/recipe/evaluation_recipe.h"
#include "tessera/recipe/last_set.h"

namespace tessera::eager {
namespace fs = std::filesystem;
namespace {

/// A file of weights, or Hugging Face's folder.
bool is_of_others(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored) || fs::exists(path / "config.json", ignored);
}

/// Files of weights do not say it: what --set model.heads=N says, 0 without.
int64_t heads_in(const std::vector<std::string>& sets) {
  int64_t heads = 0;
  if (const auto given = recipe::last_set(sets, "model.heads"))
    std::from_chars(given->data(), given->data() + given->size(), heads);
  return heads;
}

/// `--set train.epochs=0` (timm's --epochs 0) asks for no training, and an evaluation does not train anyway.
std::vector<std::string> without_zero_lengths(std::vector<std::string> sets) {
  std::erase_if(sets, [](const std::string& set) {
    for (const std::string_view key : {"train.epochs=", "train.steps="}) {
      if (set.starts_with(key)) return parse_number<double>(set.substr(key.size())) == 0.0;
    }
    return false;
  });
  return sets;
}

TrainedModel open_weights(const std::string& path, const std::vector<std::string>& sets) {
  weights::OpenOptions how;
  how.heads = heads_in(sets);
  weights::Trained found = weights::open_trained(path, how);
  arch::ModelConfig model = found.model;
  if (model.classes() == 0) model.classes() = 1;  // a recipe's model has a head; nothing reads this one
  const std::string toml =
      recipe::to_toml(recipe::evaluation_recipe(fs::path(path).stem().string(), model, found.pixels));
  return {path, recipe::parse_recipe(toml, path, ".", without_zero_lengths(sets)), std::move(found)};
}

/// Does --set lay out the pipeline of the evaluation?
bool gives_stages(const std::vector<std::string>& sets) {
  constexpr std::array<const char*, 6> kKeys = {"parallel.pipeline",      "parallel.stages",
                                                "parallel.schedule",      "parallel.virtual_stages",
                                                "parallel.micro_batches", "parallel.ahead"};
  return std::ranges::any_of(kKeys, [&](const char* key) { return recipe::last_set(sets, key).has_value(); });
}

bool fits(const recipe::Recipe& recipe, int64_t world) {
  try {
    static_cast<void>(make_plan(recipe, world));
    return true;
  } catch (const UserError&) {
    return false;
  }
}

}  // namespace

void use_any_ranks(recipe::Recipe& recipe, int64_t world, const std::vector<std::string>& sets) {
  if (!recipe::last_set(sets, "parallel.plan")) recipe.parallel.plan = "";
  if (!recipe::last_set(sets, "shard.ranks")) recipe.shard.ranks = 0;
  recipe.distill.teacher.clear();
  if (!gives_stages(sets)) recipe.parallel.pipeline = plan::PipelineSettings();
  const bool own_units = recipe::last_set(sets, "shard.units").has_value();
  if (!own_units) recipe.shard.units = plan::rules_for_any_ranks(recipe.shard.units, /*whole_layers=*/false);
  if (fits(recipe, world)) return;
  if (!recipe::last_set(sets, "parallel.tensor")) recipe.parallel.tensor = 1;
  if (!own_units) recipe.shard.units = plan::rules_for_any_ranks(recipe.shard.units, /*whole_layers=*/true);
}

TrainedModel open_trained_model(const std::string& path, int64_t world, const std::vector<std::string>& sets,
                                const Warn& warn) {
  if (is_of_others(path)) return open_weights(path, sets);
  const auto found = checkpoint::choose(path, checkpoint::kBestOrLatest);
  const fs::path checkpoints = fs::path(path) / "checkpoints";
  if (!found && !fs::is_directory(checkpoints)) static_cast<void>(checkpoint::find(path, path));  // says why
  if (!found)
    user_error(
        {.where = "checkpoint.find", .problem = concat(checkpoints.string(), " has no complete checkpoint")});
  const checkpoint::Choice& choice = *found;
  const auto manifest = checkpoint::read_manifest(choice.path);
  recipe::Recipe recipe =
      recipe::parse_recipe(manifest.progress.recipe_toml, (choice.path / "manifest.json").string(), ".",
                           without_zero_lengths(sets));
  if (!choice.passed_over.empty()) {
    if (recipe.checkpoint.on_damage == "fail") checkpoint::refuse_passed_over(choice);
    warn(checkpoint::passed_over_text(choice));
  }
  use_any_ranks(recipe, world, sets);
  return {choice.path, std::move(recipe)};
}

void warn_of_layout(const recipe::Recipe& recipe, const plan::Plan& plan,
                    const std::vector<std::string>& sets, const Warn& warn) {
  for (const std::string& line : layout_warnings(recipe, plan)) {
    const auto names = [&](const std::string& set) {
      return line.find(set.substr(0, set.find('='))) != line.npos;
    };
    if (std::ranges::any_of(sets, names)) warn(line);
  }
}

void choose_precision(recipe::Recipe& recipe, const std::vector<std::string>& sets, bool features) {
  const bool asked =
      recipe::last_set(sets, "precision.compute") || recipe::last_set(sets, "precision.linear");
  if (asked || (!features && recipe.precision.final_evaluation != recipe::Dtype::kFloat32)) return;
  recipe.precision.compute = recipe::Dtype::kFloat32;
  recipe.precision.linear = recipe::Linear::kAuto;
}

void load(TrainState& state, mesh::Mesh& mesh, const TrainedModel& trained, bool ema, Log& log) {
  if (!trained.weights) {
    Backend backend(state, mesh);
    loop::load_state(state, backend, trained.path, ema ? loop::Weights::kAverage : loop::Weights::kTrained);
    return;
  }
  if (ema)
    user_error({.where = "train.eval",
                .problem = concat("--ema needs a checkpoint of Tessera, but ", trained.path.string(),
                                  " is a file of weights")});
  take(state, *trained.weights, "weights", log);
  state.classes = trained.weights->classes;
}

std::vector<std::string> class_names(const std::vector<std::string>& saved, int64_t classes) {
  std::vector<std::string> names;
  for (int64_t i = 0; i < classes; ++i) names.push_back(std::to_string(i));
  std::copy_n(saved.begin(), std::min(saved.size(), names.size()), names.begin());
  return names;
}

}  // namespace tessera::eager
