// SPDX-License-Identifier: Apache-2.0
// What a recipe may say and hardly means. Pure; safe from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/plan/plan.h"
#include "tessera/recipe/recipe.h"

namespace tessera::recipe {

/// A line for each oddity of the schedule of a run of so many steps: warmup that never ends, a cooldown that
/// begins before it does.
std::vector<std::string> schedule_warnings(const Recipe& recipe, const StepCounts& counts);

/// Of steps that run.trace names and the run does not make; "" if it makes them all.
std::string trace_warning(const Recipe& recipe, const StepCounts& counts);

/// A line where ranks compute nothing in a step, and one where micro-batches have no images.
std::vector<std::string> batch_warnings(const BatchSizes& sizes, const plan::Plan& plan);

/// Of outputs that no label asks for; "" where data have as many classes as the model.
std::string class_count_warning(const Recipe& recipe, int64_t classes);

/// How to train on a run that has made all its steps: "train.epochs above 10, for example --set
/// train.epochs=20".
std::string how_to_train_on(const Recipe& recipe);

}  // namespace tessera::recipe
