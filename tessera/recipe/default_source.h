// SPDX-License-Identifier: Apache-2.0
// A recipe names its data by a variable with a default, the variable is not set, and the default is not here:
// the newcomer's first error. Pure but for the file system; safe from any thread.
#pragma once

#include <filesystem>

#include "tessera/recipe/recipe.h"

namespace tessera::recipe {

/// Errors: UserError where recipe.data.source does not exist and is what the recipe's `file` has as default
/// of
/// ${NAME:-default}; it names the variable and an example of its value. Says nothing of other sources:
/// opening them tells what is wrong. A file that cannot be read is none of them.
void check_default_source(const Recipe& recipe, const std::filesystem::path& file);

}  // namespace tessera::recipe
