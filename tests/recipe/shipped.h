// SPDX-License-Identifier: Apache-2.0
// The recipes of the folder recipes/.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

#include "tessera/recipe/recipe.h"

namespace tessera::recipe {

inline std::filesystem::path shipped_recipes() {
  return std::filesystem::path(TESSERA_SOURCE_DIR) / "recipes";
}

/// As `tessera train recipes/NAME.toml` of somebody who set what its comment asks for, and no data.
inline Recipe shipped(const std::string& name) {
  unsetenv("IMAGENET");
  setenv("WEIGHTS", "/somewhere/run", 1);
  setenv("TEACHER", "/somewhere/teacher", 1);
  return read_recipe(shipped_recipes() / (name + ".toml"), {});
}

}  // namespace tessera::recipe
