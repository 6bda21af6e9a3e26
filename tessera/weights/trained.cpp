// SPDX-License-Identifier: Apache-2.0
#include "tessera/weights/trained.h"

#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/recipe/recipe.h"

namespace tessera::weights {
namespace {

Trained trained_by_others(Model model) {
  Description& found = model.description;
  const std::string origin =
      concat(model.file.string(), " (", to_string(found.family), ": ", found.variant, ")");
  return {std::move(model.tensors), found.config, found.pixels,
          std::move(found.classes), origin,       std::move(found.notes)};
}

}  // namespace

std::vector<std::string> saved_classes(const checkpoint::Progress& progress) {
  const auto json = nlohmann::json::parse(progress.json, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("classes")) return {};
  return json["classes"].get<std::vector<std::string>>();
}

std::vector<std::string> saved_classes(const Opened& opened) {
  if (opened.kind == Opened::Kind::kTessera) return saved_classes(opened.source->progress());
  const auto at = opened.metadata.find("tessera.classes");
  if (at == opened.metadata.end()) return {};
  const auto json = nlohmann::json::parse(at->second, nullptr, /*allow_exceptions=*/false);
  std::vector<std::string> names;
  for (const auto& name : json) {
    if (!json.is_array() || !name.is_string()) return {};
    names.push_back(name.get<std::string>());
  }
  return names;
}

Trained open_trained(const std::filesystem::path& path, const OpenOptions& options) {
  const Opened opened = open_file(path, options.ema);
  if (opened.recipe_toml.empty()) return trained_by_others(open_model(opened, options));
  // The recipe beside the tensors knows what they do not say.
  const recipe::Recipe saved = recipe::parse_recipe(opened.recipe_toml, opened.file.string(), ".", {});
  if (opened.kind == Opened::Kind::kTessera) {
    const checkpoint::Progress& progress = opened.source->progress();
    Trained own = {opened.source, saved.model, saved.data.transform, saved_classes(progress),
                   concat(opened.file.string(), " (step ", progress.step, ")")};
    if (!opened.passed_over.empty()) own.notes.push_back(opened.passed_over);
    return own;
  }
  if (saved.model.family() != arch::VitConfig::kFamily) {
    user_error({.where = "weights.open",
                .problem = concat(path.string(), " is a file made of a ", saved.model.family()),
                .expected = "a run or a checkpoint",
                .hint = "give the checkpoint"});
  }
  OpenOptions how = options;
  how.heads = saved.model.as<arch::VitConfig>().heads;
  Model model = open_model(opened, how);
  return {std::move(model.tensors), saved.model, saved.data.transform, saved_classes(opened),
          opened.file.string()};
}

}  // namespace tessera::weights
