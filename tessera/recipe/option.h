// SPDX-License-Identifier: Apache-2.0
// What one option is: the row of the table in options.cpp. Private to this room.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tessera/recipe/recipe.h"

namespace tessera::recipe {

/// What a key may hold. The order is that of `Type`.
using Value = std::variant<bool, int64_t, double, std::string, std::vector<double>, std::vector<std::string>>;
enum class Type { kBool, kInteger, kNumber, kText, kNumbers, kTexts };

/// As TOML, shortest text that reads back to the same value.
std::string to_text(const Value& value);

/// Bounds of a number; an open bound is not itself allowed.
struct Range {
  double low = 0, high = 0;
  bool low_open = false, high_open = false;
  bool whole = false;              // of numbers in a list: no fractions
  bool holds(double value) const;  // false for NaN
  std::string text() const;        // "between 0 and 1", "above 0 and at most 1"
};

struct Option {
  std::string key;
  Type type = Type::kText;
  std::string help;
  Range range;                       // numbers, each of a list
  std::vector<std::string> choices;  // text; empty: anything
  size_t length = 0;                 // lists; 0: any
  bool path = false;                 // text, texts: relative ones are made absolute
  std::vector<std::string> words;    // of a path: stay as they are
  // Values of older versions, with those that they stand for now; true and false as text.
  std::vector<std::pair<std::string, std::string>> older;
  std::vector<std::string> families;  // of models that have the key (arch::families()); empty: all
  std::function<void(Recipe&, const Value&)> set;
  std::function<Value(const Recipe&)> get;  // none: shorthand for other keys, never printed (model.preset)

  std::string type_text() const;
  /// Has this recipe's model the key? get and set may be called.
  bool applies_to(const Recipe& recipe) const {
    return families.empty() ||
           std::find(families.begin(), families.end(), recipe.model.family()) != families.end();
  }
};

/// Every option, in the order in which they are printed.
const std::vector<Option>& options();
/// Null when there is none.
const Option* find_option(const std::string& key);

/// Throws UserError where values contradict each other. `where` names the source.
void check_recipe(const Recipe& recipe, const std::string& where);
/// Throws UserError `[recipe.parse] KEY is FOUND (PLACE): expected EXPECTED; HINT`. `found` is text to print.
[[noreturn]] void wrong_value(const std::string& key, const std::string& found, const std::string& place,
                              const std::string& expected, const std::string& hint = "");

/// Replaces ${NAME} and ${NAME:-default} (used when NAME is unset or empty) by the environment's values;
/// `$${` stands for `${` itself. `where` for messages; `is_path`: they show a path as an example.
std::string expand_environment(const std::string& text, const std::string& where, bool is_path = false);
/// Writes text so that expand_environment gives it back.
std::string protect_from_environment(const std::string& text);

/// "folder:../data" or "../data" -> absolute, below `base`; each entry of a list of shards; "fake:N" and ""
/// stay.
std::string absolute_path(const std::string& spec, const std::filesystem::path& base);

}  // namespace tessera::recipe
