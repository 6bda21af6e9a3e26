// SPDX-License-Identifier: Apache-2.0
#include "tessera/recipe/default_source.h"

#include <cstdlib>
#include <optional>
#include <regex>
#include <string>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/recipe/option.h"
#include "tessera/recipe/toml_text.h"

namespace tessera::recipe {
namespace fs = std::filesystem;
namespace {

bool is_set(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value != nullptr && *value != '\0';
}

/// The first variable of the text that is not set and has a default.
struct Unset {
  std::string name, default_value;
};
std::optional<Unset> unset_variable(const std::string& text) {
  static const std::regex variable("\\$\\{([A-Za-z_][A-Za-z0-9_]*):-([^}]*)\\}");
  for (auto at = std::sregex_iterator(text.begin(), text.end(), variable); at != std::sregex_iterator();
       ++at) {
    if (!is_set((*at)[1])) return Unset{(*at)[1], (*at)[2]};
  }
  return std::nullopt;
}

/// Of "folder:/data/flowers" the path; none where it names no one folder or file.
std::optional<fs::path> path_of(const std::string& source) {
  const size_t colon = source.find(':');
  const std::string kind = source.substr(0, colon);
  const std::string path = colon == std::string::npos ? source : source.substr(colon + 1);
  if (kind == "fake" || path.empty() || path.find_first_of(",*?{[") != std::string::npos) return std::nullopt;
  return path;
}

}  // namespace

void check_default_source(const Recipe& recipe, const fs::path& file) {
  const std::string& source = recipe.data.source;
  const auto path = path_of(source);
  std::error_code ignored;
  if (!path || fs::exists(source, ignored) || fs::exists(*path, ignored)) return;
  for (const Entry& entry : parse_toml(read_file(file), file.string())) {
    const auto* text = entry.value ? std::get_if<std::string>(&*entry.value) : nullptr;
    if (entry.key != "data.source" || text == nullptr) continue;
    const auto variable = unset_variable(*text);
    const fs::path base = fs::absolute(file).parent_path();
    if (!variable || absolute_path(expand_environment(*text, entry.where), base) != source) continue;
    user_error(
        {.where = "recipe.data",
         .problem = concat("data.source is ", path->string(), ", which does not exist (", entry.where, ")"),
         .hint = concat("set the environment variable ", variable->name, ", for which this is the default: ",
                        variable->name, "=/data/", fs::path(variable->default_value).filename().string(),
                        " tessera train ", file.string())});
  }
}

}  // namespace tessera::recipe
