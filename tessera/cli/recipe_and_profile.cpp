// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/recipe_and_profile.h"

#include <CLI/CLI.hpp>

#include "tessera/base/text.h"

namespace tessera::cli {

void add_recipe_and_profile(CLI::App* command, PredictionQuery* query) {
  command->add_option("RECIPE", query->recipe, "Recipe (TOML) of the training")->required();
  command->add_option("--profile", query->profile, "File that plan profile, assume or import-profile wrote")
      ->required();
  command->add_option("--set", query->sets, "Override a key of the recipe: KEY=VALUE; may be repeated")
      ->allow_extra_args(false);
}

void add_force(CLI::App* command, PredictionQuery* query, const std::string& replaced) {
  command->add_flag("--force", query->force,
                    concat(replaced.empty() ? "Accept" : concat("Replace ", replaced, "; accept"),
                           " a profile of another machine, build, compute dtype or number of threads"));
}

}  // namespace tessera::cli
