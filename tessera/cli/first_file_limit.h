// SPDX-License-Identifier: Apache-2.0
// How long a file may take before the recipe, which says it, is read.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/words.h"
#include "tessera/recipe/recipe.h"

namespace tessera::cli {

/// run.timeout: the last `run.timeout=SECONDS` of `--set`, else the default. A value that is no positive
/// number is left to the recipe's reader, which refuses it.
inline std::chrono::milliseconds first_file_limit(const std::vector<std::string>& sets) {
  constexpr std::string_view kKey = "run.timeout=";
  constexpr double kMost = 1e6;
  recipe::RunRecipe run;
  for (const std::string& set : sets) {
    if (!set.starts_with(kKey)) continue;
    const auto seconds = parse_number<double>(trimmed(std::string_view(set).substr(kKey.size())));
    if (seconds && *seconds > 0 && *seconds <= kMost) run.timeout = *seconds;
  }
  return recipe::timeout_of(run);
}

}  // namespace tessera::cli
