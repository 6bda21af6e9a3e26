// SPDX-License-Identifier: Apache-2.0
// The recipe of a model that somebody else trained. No LibTorch.
#pragma once

#include <string>

#include "tessera/arch/model.h"
#include "tessera/data/transform.h"
#include "tessera/recipe/recipe.h"

namespace tessera::recipe {

/// Enough to evaluate it; who trains it changes what it needs. `pixels`: how its images are made. The data is
/// not known: data.source is empty.
Recipe evaluation_recipe(const std::string& name, const arch::ModelConfig& model,
                         const data::TransformOptions& pixels);

}  // namespace tessera::recipe
