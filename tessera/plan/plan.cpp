// SPDX-License-Identifier: Apache-2.0
#include "tessera/plan/plan.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera::plan {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "tessera.plan";
constexpr int64_t kVersion = 1, kLargestWorld = 1 << 24, kLargestPrefetch = 1 << 16;
constexpr std::array kLevels = {Level::kReplicate, Level::kZero1, Level::kZero2, Level::kZero3};
constexpr std::array kOffloads = {Offload::kNone, Offload::kOptimizer, Offload::kAll};

template <typename Values>
std::vector<std::string> names_of(const Values& values) {
  std::vector<std::string> names;
  for (const auto value : values) names.push_back(to_string(value));
  return names;
}

/// Reads plan.json field by field; every error names the file.
class Reader {
 public:
  explicit Reader(const std::string& where) : where_(where) {}

  [[noreturn]] void fail(const std::string& problem, const std::string& expected = "",
                         const std::string& hint = "") const {
    user_error({.where = "plan.plan_from_json",
                .problem = concat(problem, " (", where_, ")"),
                .expected = expected,
                .hint = hint});
  }

  void keys(const Json& object, const std::string& what, const std::vector<std::string>& required,
            const std::vector<std::string>& optional = {}) const {
    if (!object.is_object()) fail(concat(what, " is ", shown(object)), "an object");
    std::vector<std::string> known = required;
    known.insert(known.end(), optional.begin(), optional.end());
    for (const auto& [key, value] : object.items()) {
      if (std::find(known.begin(), known.end(), key) != known.end()) continue;
      const std::string near = nearest(key, known);
      fail(concat(what, " has the unknown key \"", escape(key), '"'),
           near.empty() ? "one of " + join(known, ", ") : "",
           near.empty() ? "" : concat("did you mean \"", near, "\"?"));
    }
    for (const auto& key : required) {
      if (!object.contains(key)) fail(concat(what, " has no \"", key, '"'));
    }
  }

  int64_t integer(const Json& object, const char* key, int64_t low, int64_t high) const {
    const Json& value = object[key];
    // An unsigned number beyond int64 turns negative in get<int64_t>() and fails as well.
    if (value.is_number_integer()) {
      const auto number = value.get<int64_t>();
      if (number >= low && number <= high) return number;
    }
    fail(concat('"', key, "\" is ", shown(value)), concat("an integer between ", low, " and ", high));
  }

  std::string text(const Json& object, const char* key) const {
    if (!object[key].is_string()) fail(concat('"', key, "\" is ", shown(object[key])), "a string");
    return object[key].get<std::string>();
  }

  bool boolean(const Json& object, const char* key) const {
    if (!object[key].is_boolean()) fail(concat('"', key, "\" is ", shown(object[key])), "true or false");
    return object[key].get<bool>();
  }

  /// One of `values` by its name.
  template <typename Values>
  auto choice(const Json& object, const char* key, const Values& values) const {
    const std::string name = text(object, key);
    const auto names = names_of(values);
    const auto at = std::find(names.begin(), names.end(), name);
    if (at == names.end()) {
      fail(concat('"', key, "\" is \"", escape(name), '"'), concat("one of ", join(names, ", ")));
    }
    return values.at(static_cast<size_t>(at - names.begin()));
  }

  UnitPlan unit(const Json& object) const {
    keys(object, "a unit", {"name", "level", "recompute"}, {"offload"});
    UnitPlan unit{text(object, "name"), Level::kZero3, boolean(object, "recompute")};
    if (unit.name.empty()) fail("\"name\" of a unit is empty");
    unit.level = choice(object, "level", kLevels);
    if (object.contains("offload")) unit.offload = choice(object, "offload", kOffloads);
    return unit;
  }

 private:
  /// A value as it stood in the text, cut to a readable length.
  static std::string shown(const Json& value) {
    std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
    if (text.size() > 40) text = text.substr(0, 40) + "...";
    return text;
  }

  const std::string& where_;
};

}  // namespace

Plan uniform_plan(const arch::ModelConfig& config, int64_t world, Level level, bool recompute,
                  int64_t prefetch, Offload offload) {
  if (world < 1 || world > kLargestWorld) {
    user_error({.where = "plan.uniform_plan",
                .problem = concat("world is ", world),
                .expected = concat("1 to ", kLargestWorld, " ranks")});
  }
  if (prefetch < 0 || prefetch > kLargestPrefetch) {
    user_error({.where = "plan.uniform_plan",
                .problem = concat("shard.prefetch is ", prefetch),
                .expected = concat("0 to ", kLargestPrefetch, " units")});
  }
  Plan plan{world, prefetch, {}};
  const auto names = arch::unit_names(config);
  for (const auto& name : names) {
    const bool end = name == names.front() || name == names.back();
    plan.units.push_back({name, level, recompute && !end, offload});
  }
  return plan;
}

std::string to_json(const Plan& plan) {
  Json json = {
      {"format", kFormat}, {"version", kVersion}, {"world", plan.world}, {"prefetch", plan.prefetch}};
  json["units"] = Json::array();
  for (const auto& unit : plan.units) {
    json["units"].push_back(
        {{"name", unit.name}, {"level", to_string(unit.level)}, {"recompute", unit.recompute}});
    if (unit.offload != Offload::kNone) json["units"].back()["offload"] = to_string(unit.offload);
  }
  return json.dump(2) + "\n";
}

Plan plan_from_json(const std::string& text, const std::string& where) {
  const Reader reader(where);
  Json json;
  try {
    json = Json::parse(text);
  } catch (const Json::parse_error& error) {
    reader.fail(concat("not valid JSON at byte ", error.byte));
  } catch (const Json::out_of_range&) {
    reader.fail("a number is beyond the range of a double");
  }
  reader.keys(json, "a plan", {"format", "version", "world", "prefetch", "units"});
  if (reader.text(json, "format") != kFormat) {
    reader.fail(concat("\"format\" is \"", escape(json["format"].get<std::string>()), '"'),
                concat('"', kFormat, '"'));
  }
  reader.integer(json, "version", kVersion, kVersion);
  Plan plan{reader.integer(json, "world", 1, kLargestWorld),
            reader.integer(json, "prefetch", 0, kLargestPrefetch),
            {}};
  if (!json["units"].is_array() || json["units"].empty()) {
    reader.fail("\"units\" has no unit", "a list of at least one unit");
  }
  std::set<std::string> names;
  for (const auto& unit : json["units"]) {
    plan.units.push_back(reader.unit(unit));
    const std::string& name = plan.units.back().name;
    if (!names.insert(name).second) reader.fail(concat("\"units\" has \"", escape(name), "\" twice"));
  }
  return plan;
}

std::string to_string(Level level) {
  switch (level) {
    case Level::kReplicate:
      return "replicate";
    case Level::kZero1:
      return "zero1";
    case Level::kZero2:
      return "zero2";
    case Level::kZero3:
      return "zero3";
  }
  TESSERA_CHECK(false, "level ", static_cast<int>(level));
  return {};
}

std::string to_string(Offload offload) {
  switch (offload) {
    case Offload::kNone:
      return "none";
    case Offload::kOptimizer:
      return "optimizer";
    case Offload::kAll:
      return "all";
  }
  TESSERA_CHECK(false, "offload ", static_cast<int>(offload));
  return {};
}

Level level_from_string(const std::string& name) {
  const auto names = names_of(kLevels);
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i] == name) return kLevels.at(i);
  }
  const std::string near = nearest(name, names);
  user_error({.where = "plan.level_from_string",
              .problem = concat("the level is \"", escape(name), "\""),
              .expected = concat("one of ", join(names, ", ")),
              .hint = near.empty() ? "" : concat("did you mean \"", near, "\"?")});
}

}  // namespace tessera::plan
