// SPDX-License-Identifier: Apache-2.0
#include "tessera/loop/run_state.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/json_text.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/model_json.h"
#include "tessera/checkpoint/names.h"

namespace tessera::loop {
namespace {

using checkpoint::names::kAverage, checkpoint::names::kBuffer, checkpoint::names::kParameter;

/// Is it of the model itself, not of the optimizer or an average?
bool is_of_model(const std::string& name) {
  return name.starts_with(kParameter) || name.starts_with(kBuffer);
}

/// "best_scores_top1": what is under another metric's name says nothing of this one.
std::string best_key(const recipe::Recipe& recipe) { return concat("best_scores_", recipe.checkpoint.best); }

}  // namespace

SaveRequest save_request(RunState& state, Backend& backend, const std::filesystem::path& folder, bool best) {
  checkpoint::Progress progress;
  progress.step = state.step;
  nlohmann::json json = {{"guard", nlohmann::json::parse(state.guard.to_json())},
                         {"loss_scale", nlohmann::json::parse(state.loss_scale.to_json())},
                         {"eval_due", state.eval_due},
                         {"seconds", state.seconds},
                         {"classes", state.classes}};
  backend.write_counters(json);
  if (state.data) json["data"] = to_json(*state.data);
  if (!state.run.id.empty()) json["run"] = nlohmann::json::parse(checkpoint::to_json_text(state.run));
  if (!state.best.empty()) json[best_key(state.recipe)] = state.best;
  progress.json = json_text(json);
  progress.recipe_toml = recipe::to_toml(state.recipe);
  progress.plan_json = plan::to_json(state.plan);
  progress.model_json = checkpoint::model_json(state.recipe.model);
  std::unique_ptr<HostState> memory = backend.state_to_save();
  const auto& recipe = state.recipe.checkpoint;
  return {{.folder = folder,
           .keep = recipe.keep,
           .best = best,
           .score = state.score,
           .score_of = recipe.best,
           .keep_best = recipe.keep_best,
           .keep_every = recipe.keep_every},
          std::move(memory),
          std::move(progress)};
}

std::filesystem::path save_state(RunState& state, Backend& backend, World& world,
                                 const std::filesystem::path& folder, bool best) {
  const SaveRequest request = save_request(state, backend, folder, best);
  return checkpoint::save(request.options, request.memory->shards(), request.progress,
                          checkpoint_ranks(world));
}

void load_state(RunState& state, Backend& backend, const std::filesystem::path& checkpoint, Weights weights) {
  const checkpoint::Manifest manifest = checkpoint::read_manifest(checkpoint);
  const checkpoint::Progress& progress = manifest.progress;
  checkpoint::refuse_surplus(progress.model_json, state.recipe.model, checkpoint);
  const bool has_average = std::ranges::any_of(
      manifest.tensors, [](const auto& tensor) { return tensor.name.starts_with(kAverage); });
  const std::unique_ptr<HostState> held = backend.state_to_load();
  std::vector<checkpoint::TensorShard>& shards = held->shards();
  if (weights == Weights::kAverage) {
    if (!has_average) {
      user_error({.where = "checkpoint.load",
                  .problem = concat(checkpoint.string(), " has no moving average of the weights"),
                  .expected = "a checkpoint of a run with ema.decay above 0"});
    }
    for (auto& shard : shards) {
      if (shard.name.starts_with(kParameter)) {
        shard.name = concat(kAverage, shard.name.substr(kParameter.size()));
      }
    }
  } else if (!has_average) {
    std::erase_if(shards, [](const auto& shard) { return shard.name.starts_with(kAverage); });
  }
  // Converted weights: a training begins with them, and its optimizer has nothing behind it.
  if (progress.step == 0 &&
      std::ranges::all_of(manifest.tensors, is_of_model, &checkpoint::Manifest::Tensor::name)) {
    std::erase_if(shards, [](const auto& shard) { return !is_of_model(shard.name); });
  }
  checkpoint::load(checkpoint, shards);
  held->store();
  state.step = progress.step;
  const auto json = nlohmann::json::parse(progress.json);
  state.best.clear();
  const std::string& metric = state.recipe.checkpoint.best;
  if (json.contains(best_key(state.recipe))) {
    state.best = json.at(best_key(state.recipe)).get<std::vector<double>>();
  } else if (const auto one = json.find("best_" + metric); one != json.end()) {  // of versions that kept one
    state.best = {metric.starts_with("loss") ? -one->get<double>() : one->get<double>()};
  }
  state.guard.restore(json.contains("guard") ? json.at("guard").dump() : "");
  state.loss_scale.restore(json.contains("loss_scale") ? json.at("loss_scale").dump() : "");
  state.eval_due = json.value("eval_due", false);
  state.seconds = json.value("seconds", 0.0);
  state.classes = json.value("classes", std::vector<std::string>());
  state.data = parse_data_record(json.value("data", nlohmann::json()));
  state.run = checkpoint::saved_by(progress);
  backend.read_counters(json, progress.step, has_average);
}

}  // namespace tessera::loop
