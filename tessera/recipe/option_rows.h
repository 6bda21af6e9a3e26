// SPDX-License-Identifier: Apache-2.0
// How rows of the table of options are written: one function a kind of value. Private to this room.
#pragma once

#include <charconv>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/recipe/option.h"

namespace tessera::recipe {

// A field of the recipe, for reading and for writing.
#define TESSERA_FIELD(path) \
  [](auto& recipe) -> auto& { return recipe.path; }

inline Option row(std::string key, Type type, std::string help, Range range = {}) {
  Option option;
  option.key = std::move(key);
  option.type = type;
  option.help = std::move(help);
  option.range = range;
  return option;
}

template <typename Field>
Option flag(std::string key, std::string help, Field field) {
  Option option = row(std::move(key), Type::kBool, std::move(help));
  option.set = [field](Recipe& r, const Value& v) { field(r) = std::get<bool>(v); };
  option.get = [field](const Recipe& r) -> Value { return static_cast<bool>(field(r)); };
  return option;
}

template <typename Field>
Option integer(std::string key, std::string help, Range range, Field field) {
  Option option = row(std::move(key), Type::kInteger, std::move(help), range);
  option.set = [field](Recipe& r, const Value& v) { field(r) = std::get<int64_t>(v); };
  option.get = [field](const Recipe& r) -> Value { return static_cast<int64_t>(field(r)); };
  return option;
}

template <typename Field>
Option number(std::string key, std::string help, Range range, Field field) {
  Option option = row(std::move(key), Type::kNumber, std::move(help), range);
  option.set = [field](Recipe& r, const Value& v) { field(r) = std::get<double>(v); };
  option.get = [field](const Recipe& r) -> Value { return static_cast<double>(field(r)); };
  return option;
}

template <typename Field>
Option text(std::string key, std::string help, Field field, std::vector<std::string> choices = {}) {
  Option option = row(std::move(key), Type::kText, std::move(help));
  option.choices = std::move(choices);
  option.set = [field](Recipe& r, const Value& v) { field(r) = std::get<std::string>(v); };
  option.get = [field](const Recipe& r) -> Value { return field(r); };
  return option;
}

template <typename Field>
Option texts(std::string key, std::string help, Field field) {
  Option option = row(std::move(key), Type::kTexts, std::move(help));
  option.set = [field](Recipe& r, const Value& v) { field(r) = std::get<std::vector<std::string>>(v); };
  option.get = [field](const Recipe& r) -> Value { return field(r); };
  return option;
}

template <typename Field>
Option numbers(std::string key, std::string help, Range range, Field field) {
  Option option = row(std::move(key), Type::kNumbers, std::move(help), range);
  option.set = [field](Recipe& r, const Value& v) { field(r) = std::get<std::vector<double>>(v); };
  option.get = [field](const Recipe& r) -> Value { return field(r); };
  return option;
}

template <typename Field>
Option path(std::string key, std::string help, Field field, std::vector<std::string> words = {}) {
  Option option = text(std::move(key), std::move(help), field);
  option.path = true;
  option.words = std::move(words);
  return option;
}

template <typename Field>
Option paths(std::string key, std::string help, Field field) {
  Option option = texts(std::move(key), std::move(help), field);
  option.path = true;
  return option;
}

/// An enum (or bool) field whose values have names.
template <typename Enum, typename Field>
Option choice(std::string key, std::string help, std::vector<std::pair<std::string, Enum>> names,
              Field field) {
  Option option = row(std::move(key), Type::kText, std::move(help));
  for (const auto& [name, value] : names) option.choices.push_back(name);
  option.set = [field, names](Recipe& r, const Value& v) {
    for (const auto& [name, value] : names) {
      if (name == std::get<std::string>(v)) field(r) = value;
    }
  };
  option.get = [field, names](const Recipe& r) -> Value {
    for (const auto& [name, value] : names) {
      if (field(r) == value) return name;
    }
    TESSERA_CHECK(false, "a value without a name");
    return {};
  };
  return option;
}

/// Two fields as [least, most].
template <typename Low, typename High>
Option pair(std::string key, std::string help, Range range, Low low, High high) {
  Option option = row(std::move(key), Type::kNumbers, std::move(help), range);
  option.length = 2;
  option.set = [low, high](Recipe& r, const Value& v) {
    const auto& values = std::get<std::vector<double>>(v);
    low(r) = values.at(0);
    high(r) = values.at(1);
  };
  option.get = [low, high](const Recipe& r) -> Value { return std::vector<double>{low(r), high(r)}; };
  return option;
}

/// Whole numbers.
template <typename Field>
Option counts(std::string key, std::string help, Range range, Field field) {
  range.whole = true;
  Option option = row(std::move(key), Type::kNumbers, std::move(help), range);
  option.set = [field](Recipe& r, const Value& v) {
    field(r).clear();
    for (const double count : std::get<std::vector<double>>(v)) field(r).push_back(std::llround(count));
  };
  option.get = [field](const Recipe& r) -> Value {
    return std::vector<double>(field(r).begin(), field(r).end());
  };
  return option;
}

/// The double with the float's own shortest text: 0.485F becomes 0.485.
inline double widen(float value) {
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  double wide = 0;
  std::from_chars(buffer, end, wide);
  return wide;
}

template <typename Field>
Option floats(std::string key, std::string help, Range range, Field field) {
  Option option = row(std::move(key), Type::kNumbers, std::move(help), range);
  option.set = [field](Recipe& r, const Value& v) {
    field(r).clear();
    for (const double value : std::get<std::vector<double>>(v)) field(r).push_back(static_cast<float>(value));
  };
  option.get = [field](const Recipe& r) -> Value {
    std::vector<double> wide;
    for (const float value : field(r)) wide.push_back(widen(value));
    return wide;
  };
  return option;
}

/// A key that stands for others; read.cpp knows what it does.
inline Option shorthand(std::string key, Type type, std::string help, Range range = {}) {
  Option option = row(std::move(key), type, std::move(help), range);
  option.set = [](Recipe&, const Value&) {};
  return option;
}

inline constexpr Range kRate{0, 1, false, true};  // [0, 1)
inline constexpr Range kCount{0, 1e12};

/// The rows of [model].
void add_model_options(std::vector<Option>& table);
/// The rows of [data]: sources and their order; what happens to an image.
void add_source_options(std::vector<Option>& table);
void add_data_options(std::vector<Option>& table);
/// The rows of [optimizer], [schedule], [loss], [distill] and [ema].
void add_optimizer_options(std::vector<Option>& table);

}  // namespace tessera::recipe
