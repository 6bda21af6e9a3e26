// SPDX-License-Identifier: Apache-2.0
// Short ways to read recipes in tests.
#pragma once

#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/recipe/recipe.h"
#include "tests/error_text.h"

namespace tessera::recipe {

/// Reads text, with a length given by --set so that the text need not.
inline Recipe read(const std::string& toml, std::vector<std::string> sets = {}) {
  sets.insert(sets.begin(), "train.steps=10");
  return parse_recipe(toml, "test.toml", "/base", sets);
}

/// The message of the UserError, "no error" without one.
inline std::string read_error(const std::string& toml, const std::vector<std::string>& sets = {}) {
  return error_text([&] { read(toml, sets); });
}

}  // namespace tessera::recipe
