// SPDX-License-Identifier: Apache-2.0
// A layout as `tessera compare --layouts` takes it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tessera/plan/plan.h"
#include "tessera/recipe/recipe.h"

namespace tessera::train {

struct Layout {
  std::string text;  // as the user wrote it
  recipe::Recipe recipe;
  plan::Plan plan;
};

/// Gives the recipe with these "key=value" settings on top.
using MakeRecipe = std::function<recipe::Recipe(const std::vector<std::string>& sets)>;

inline constexpr int64_t kMostThreadRanks = 64;

/// `text` is the path of a plan file (or of a folder with a plan.json), which the recipe's own keys of the
/// layout then do not change; or settings KEY=VALUE of the recipe, and ranks=N (1 where it is not given),
/// separated by commas, or by semicolons where there is one: values may contain commas then. Errors:
/// UserError that names the layout where it is neither, where a setting is wrong, or where the plan does not
/// fit the recipe's model.
Layout read_layout(const std::string& text, const MakeRecipe& make_recipe);

}  // namespace tessera::train
