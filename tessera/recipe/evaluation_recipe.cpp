// SPDX-License-Identifier: Apache-2.0
#include "tessera/recipe/evaluation_recipe.h"

namespace tessera::recipe {

Recipe evaluation_recipe(const std::string& name, const arch::ModelConfig& model,
                         const data::TransformOptions& pixels) {
  Recipe recipe;
  recipe.name = name;
  recipe.model = model;
  recipe.data.transform = pixels;
  recipe.data.transform.image_size = model.image_size();
  recipe.train.epochs = 1;
  recipe.train.batch = 1;
  recipe.train.eval_batch = 64;
  return recipe;
}

}  // namespace tessera::recipe
