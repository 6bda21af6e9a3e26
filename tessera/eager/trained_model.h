// SPDX-License-Identifier: Apache-2.0
// A trained model to evaluate or to predict with: a checkpoint of Tessera's, or other people's weights.
#pragma once

#include <c10/core/Device.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tessera/base/log.h"
#include "tessera/eager/session.h"
#include "tessera/eager/state.h"
#include "tessera/recipe/recipe.h"
#include "tessera/weights/trained.h"

namespace tessera::eager {

struct TrainedModel {
  std::filesystem::path path;                    // a checkpoint, or a file or folder of weights
  recipe::Recipe recipe;                         // with what --set changes
  std::optional<weights::Trained> weights = {};  // where it is no checkpoint of Tessera's

  bool has_classifier() const { return !weights || weights->model.classes() > 0; }
};

/// What a path means: a checkpoint (its own folder, or a run's: the best, else the latest) with the recipe
/// saved in it, adapted to `world` ranks by use_any_ranks, or somebody's weights. Errors: UserError with the
/// reason.
TrainedModel open_trained_model(const std::string& path, int64_t world, const std::vector<std::string>& sets,
                                const Warn& warn);

/// Removes the training's groups of ranks from a recipe that is to be evaluated on `world` ranks: its plan
/// file, stages, groups that split the state, and where it does not fit these ranks, tensor parallelism. The
/// numbers are the same without. Keys that `sets` gives stay; one of them that lays out stages keeps the
/// stages. The teacher of the training goes as well.
void use_any_ranks(recipe::Recipe& recipe, int64_t world, const std::vector<std::string>& sets);

/// A line for keys that `sets` gives to lay out the evaluation and that have no effect on its plan.
void warn_of_layout(const recipe::Recipe& recipe, const plan::Plan& plan,
                    const std::vector<std::string>& sets, const Warn& warn);

/// float32 where the recipe evaluates in it or the evaluation is for `features`, unless --set says otherwise.
void choose_precision(recipe::Recipe& recipe, const std::vector<std::string>& sets, bool features);

/// Gives `state` the weights (with `ema` their moving average) and the classes' names. Collective. Errors:
/// UserError where they do not fit, or have no average.
void load(TrainState& state, mesh::Mesh& mesh, const TrainedModel& trained, bool ema, Log& log);

/// One for each output of the model: as saved, else the label's number.
std::vector<std::string> class_names(const std::vector<std::string>& saved, int64_t classes);

}  // namespace tessera::eager
