// SPDX-License-Identifier: Apache-2.0
// How long a file may take before the recipe, which says it, is read.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "tessera/base/words.h"
#include "tessera/recipe/last_set.h"
#include "tessera/recipe/recipe.h"

namespace tessera::cli {

/// run.timeout: the last `run.timeout=SECONDS` of `--set`, else the default. A value that is no positive
/// number is left to the recipe's reader, which refuses it.
inline std::chrono::milliseconds first_file_limit(const std::vector<std::string>& sets) {
  constexpr double kMost = 1e6;
  recipe::RunRecipe run;
  if (const auto given = recipe::last_set(sets, "run.timeout")) {
    const auto seconds = parse_number<double>(trimmed(*given));
    if (seconds && *seconds > 0 && *seconds <= kMost) run.timeout = *seconds;
  }
  return recipe::timeout_of(run);
}

}  // namespace tessera::cli
