// SPDX-License-Identifier: Apache-2.0
// Reads the fields of a JSON file and refuses what is wrong with one line. For the rooms plan and planner;
// not an installed header. Pure; safe from any thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera::plan {

/// What the structure of a JSON text says that its values do not: a parser takes the last value of a key that
/// is given twice, and calls itself for each level. Linear in the text.
struct JsonStructure {
  bool too_deep = false;                   // more than kDeepestJson levels
  std::optional<std::string> key_twice{};  // the first one of an object that has it already
};
inline constexpr int kDeepestJson = 64;
/// Of a text up to its first syntax error.
JsonStructure json_structure(const std::string& text);

/// Every error is a UserError "[FUNCTION] PROBLEM (FILE): expected EXPECTED; HINT" that quotes the value.
class JsonFields {
 public:
  using Json = nlohmann::ordered_json;

  /// `function`: "room.function", a literal. `file`: path for messages.
  JsonFields(const char* function, std::string file) : function_(function), file_(std::move(file)) {}

  [[noreturn]] void fail(const std::string& problem, const std::string& expected = "",
                         const std::string& hint = "") const;
  /// Errors: text that is not JSON, keys that are given twice, zero bytes, numbers beyond a double's range,
  /// more than 64 levels.
  Json parse(const std::string& text) const;
  /// Errors: no object, an unknown key (names the nearest), a required key that is missing. `what`: "a plan".
  void keys(const Json& object, const std::string& what, const std::vector<std::string>& required,
            const std::vector<std::string>& optional = {}) const;

  // Values of a key. Requires: the object has the key.
  int64_t integer(const Json& object, const char* key, int64_t low, int64_t high) const;
  std::vector<int64_t> integers(const Json& object, const char* key, int64_t low, int64_t high) const;
  std::string text(const Json& object, const char* key) const;
  bool boolean(const Json& object, const char* key) const;
  double number(const Json& object, const char* key) const;
  double number_of_at_least(const Json& object, const char* key, double low) const;
  double number_above(const Json& object, const char* key, double low) const;
  /// One of `names`; returns its index.
  size_t choice_of_names(const Json& object, const char* key, const std::vector<std::string>& names) const;
  /// One of `values` by its to_string().
  template <typename Values>
  auto choice(const Json& object, const char* key, const Values& values) const {
    std::vector<std::string> names;
    for (const auto value : values) names.push_back(to_string(value));
    return values.at(choice_of_names(object, key, names));
  }

  /// A value as it stood in the text, cut to a readable length.
  static std::string shown(const Json& value);

  const std::string& file() const { return file_; }

 private:
  const char* function_;
  std::string file_;
};

}  // namespace tessera::plan
