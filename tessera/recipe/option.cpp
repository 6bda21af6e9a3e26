// SPDX-License-Identifier: Apache-2.0
#include "tessera/recipe/option.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera::recipe {
namespace {

std::string number_text(double value) {
  char buffer[64];
  const auto result = std::to_chars(buffer, buffer + sizeof buffer, value);
  std::string text(buffer, result.ptr);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

/// A bound as a person writes it: "1000000", "0.5".
std::string bound_text(double value) {
  const std::string text = number_text(value);
  return text.ends_with(".0") ? text.substr(0, text.size() - 2) : text;
}

std::string quoted(const std::string& text) { return "\"" + escape(text) + "\""; }

std::string texts_text(const std::vector<std::string>& values) {
  std::vector<std::string> words;
  for (const std::string& value : values) words.push_back(quoted(value));
  return "[" + join(words, ", ") + "]";
}

/// Counts, such as blocks of a stage, look like counts.
std::string list_text(const std::vector<double>& values) {
  const bool whole = std::ranges::all_of(values, [](double value) { return value == std::floor(value); });
  std::vector<std::string> words;
  for (const double value : values) words.push_back(whole ? bound_text(value) : number_text(value));
  return "[" + join(words, ", ") + "]";
}

}  // namespace

std::string to_text(const Value& value) {
  switch (static_cast<Type>(value.index())) {
    case Type::kBool:
      return std::get<bool>(value) ? "true" : "false";
    case Type::kInteger:
      return std::to_string(std::get<int64_t>(value));
    case Type::kNumber:
      return number_text(std::get<double>(value));
    case Type::kText:
      return quoted(std::get<std::string>(value));
    case Type::kNumbers:
      return list_text(std::get<std::vector<double>>(value));
    case Type::kTexts:
      return texts_text(std::get<std::vector<std::string>>(value));
  }
  return {};
}

bool Range::holds(double value) const {
  if (whole && value != std::floor(value)) return false;
  return (low_open ? value > low : value >= low) && (high_open ? value < high : value <= high);
}

std::string Range::text() const {
  if (whole) return concat("whole and between ", bound_text(low), " and ", bound_text(high));
  if (!low_open && !high_open) return concat("between ", bound_text(low), " and ", bound_text(high));
  return concat(low_open ? "above " : "at least ", bound_text(low), " and ",
                high_open ? "below " : "at most ", bound_text(high));
}

std::string Option::type_text() const {
  switch (type) {
    case Type::kBool:
      return "true or false";
    case Type::kInteger:
      return "integer " + range.text();
    case Type::kNumber:
      return "number " + range.text();
    case Type::kText:
      return path ? "path" : choices.empty() ? "text" : join(choices, " | ");
    case Type::kNumbers:
      if (range.whole)
        return concat("list of integers between ", bound_text(range.low), " and ", bound_text(range.high));
      return concat("list of ", length > 0 ? std::to_string(length) + " " : "", "numbers ", range.text());
    case Type::kTexts:
      return path ? "list of paths" : "list of texts";
  }
  return {};
}

void wrong_value(const std::string& key, const std::string& found, const std::string& place,
                 const std::string& expected, const std::string& hint) {
  user_error({.where = "recipe.parse",
              .problem = concat(key, " is ", found, " (", place, ")"),
              .expected = expected,
              .hint = hint});
}

const Option* find_option(const std::string& key) {
  for (const auto& option : options()) {
    if (option.key == key) return &option;
  }
  return nullptr;
}

}  // namespace tessera::recipe
