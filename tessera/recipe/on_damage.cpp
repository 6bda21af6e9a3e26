// SPDX-License-Identifier: Apache-2.0
#include "tessera/recipe/on_damage.h"

#include "tessera/base/error.h"
#include "tessera/recipe/toml_text.h"

namespace tessera::recipe {
namespace {

/// Of all keys this one: the rest may be of a newer version.
bool fails_on_damage(const std::string& recipe_toml) {
  try {
    for (const Entry& entry : parse_toml(recipe_toml, "recipe")) {
      if (entry.key != "checkpoint.on_damage" || !entry.value) continue;
      const auto* value = std::get_if<std::string>(&*entry.value);
      return value != nullptr && *value == "fail";
    }
  } catch (const UserError&) {
    return false;  // loading says what is wrong with the recipe
  }
  return false;
}

}  // namespace

std::string passed_over(const checkpoint::Choice& choice, const std::string& recipe_toml) {
  if (choice.passed_over.empty()) return "";
  if (fails_on_damage(recipe_toml)) checkpoint::refuse_passed_over(choice);
  return checkpoint::passed_over_text(choice);
}

}  // namespace tessera::recipe
