// SPDX-License-Identifier: Apache-2.0
// Any text is refused with a UserError or is a recipe that survives printing and reading.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "tessera/base/error.h"
#include "tessera/recipe/recipe.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;
  try {
    const std::string text(reinterpret_cast<const char*>(data), size);
    const recipe::Recipe read = recipe::parse_recipe(text, "recipe.toml", "/base", {});
    const recipe::Recipe again = recipe::parse_recipe(recipe::to_toml(read), "printed.toml", "/other", {});
    if (!recipe::difference(read, again).empty()) std::abort();
  } catch (const UserError&) {
  }
  return 0;
}
