// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/base/words.h"
#include "tessera/recipe/option.h"

namespace tessera::recipe {
namespace {

bool is_name(std::string_view name) {
  if (name.empty() || (name[0] >= '0' && name[0] <= '9')) return false;
  for (const char c : name) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (!letter && !(c >= '0' && c <= '9') && c != '_') return false;
  }
  return true;
}

/// `inside`: what stands between the braces.
std::string value_of(std::string_view inside, const std::string& where, bool is_path) {
  const size_t split = inside.find(":-");
  const std::string name(inside.substr(0, split));
  if (!is_name(name) || inside.find("${") != std::string_view::npos) {
    user_error({.where = "recipe.parse",
                .problem = concat("\"${", escape(inside),
                                  "}\" is not a valid reference to an environment variable (", where, ")"),
                .expected = "${NAME} or ${NAME:-default}",
                .hint = "write $${ for a literal ${"});
  }
  const char* value = std::getenv(name.c_str());
  if (value != nullptr && (*value != '\0' || split == std::string_view::npos)) return value;
  if (split != std::string_view::npos) return std::string(inside.substr(split + 2));
  user_error(
      {.where = "recipe.parse",
       .problem = concat("the environment variable ", name, " is not set (", where, ")"),
       .hint = concat("set it", is_path ? concat(": ", name, "=/data/", lower(name), " tessera ...") : "",
                      ", or give a default: ${", name, ":-default}")});
}

}  // namespace

std::string expand_environment(const std::string& text, const std::string& where, bool is_path) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    if (text.compare(i, 3, "$${") == 0) {
      out += "${";
      i += 3;
    } else if (text.compare(i, 2, "${") == 0) {
      const size_t end = text.find('}', i);
      if (end == std::string::npos) {
        user_error({.where = "recipe.parse",
                    .problem = concat("\"", escape(text), "\" has ${ without a closing } (", where, ")"),
                    .expected = "${NAME} or ${NAME:-default}",
                    .hint = "write $${ for a literal ${"});
      }
      out += value_of(std::string_view(text).substr(i + 2, end - i - 2), where, is_path);
      i = end + 1;
    } else {
      out += text[i++];
    }
  }
  return out;
}

std::string protect_from_environment(const std::string& text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text.compare(i, 2, "${") == 0) out += '$';
    out += text[i];
  }
  return out;
}

}  // namespace tessera::recipe
