// SPDX-License-Identifier: Apache-2.0
// plan.json, written and read.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/plan/names.h"

namespace tessera::plan {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "tessera.plan";
constexpr int64_t kVersion = 2;

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

  /// Version of the file, 1 to kVersion.
  int64_t version(const Json& json) const {
    if (!json.is_object()) fail(concat("a plan is ", shown(json)), "an object");
    if (!json.contains("version")) fail("a plan has no \"version\"");
    return integer(json, "version", 1, kVersion);
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

  /// `version`: of the file.
  UnitPlan unit(const Json& object, int64_t version) const {
    if (version == 1) {
      keys(object, "a unit", {"name", "level", "recompute"}, {"offload"});
    } else {
      keys(object, "a unit", {"name", "level", "recompute"},
           {"offload", "shard", "tensor", "adjacent", "keep_gathered"});
    }
    UnitPlan unit{text(object, "name")};
    if (unit.name.empty()) fail("\"name\" of a unit is empty");
    unit.level = choice(object, "level", kLevels);
    if (version == 1) {
      unit.recompute = boolean(object, "recompute") ? Recompute::kAll : Recompute::kNone;
    } else {
      unit.recompute = choice(object, "recompute", kRecomputes);
    }
    if (object.contains("offload")) unit.offload = choice(object, "offload", kOffloads);
    if (object.contains("shard")) unit.shard = integer(object, "shard", 0, kLargestWorld);
    if (object.contains("tensor")) unit.layout.tensor = integer(object, "tensor", 1, kLargestWorld);
    if (object.contains("adjacent")) unit.layout.adjacent = boolean(object, "adjacent");
    if (object.contains("keep_gathered")) unit.keep_gathered = boolean(object, "keep_gathered");
    return unit;
  }

  std::vector<int64_t> integers(const Json& object, const char* key, int64_t low, int64_t high) const {
    if (!object[key].is_array()) {
      fail(concat('"', key, "\" is ", shown(object[key])), "a list of integers");
    }
    std::vector<int64_t> values;
    for (const Json& entry : object[key]) {
      Json one;
      one[key] = entry;
      values.push_back(integer(one, key, low, high));
    }
    return values;
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

std::string to_json(const Plan& plan) {
  Json json = {{"format", kFormat},
               {"version", kVersion},
               {"world", plan.world},
               {"stages", plan.stages},
               {"virtual_stages", plan.virtual_stages},
               {"micro_batches", plan.micro_batches},
               {"schedule", to_string(plan.schedule)},
               {"first_unit", plan.first_unit},
               {"prefetch", plan.prefetch}};
  if (plan.ahead > 0) json["ahead"] = plan.ahead;
  json["units"] = Json::array();
  for (const UnitPlan& unit : plan.units) {
    Json entry = {
        {"name", unit.name}, {"level", to_string(unit.level)}, {"recompute", to_string(unit.recompute)}};
    const UnitPlan defaults;
    if (unit.offload != defaults.offload) entry["offload"] = to_string(unit.offload);
    if (unit.shard != defaults.shard) entry["shard"] = unit.shard;
    if (unit.layout.tensor != defaults.layout.tensor) entry["tensor"] = unit.layout.tensor;
    if (unit.layout.adjacent != defaults.layout.adjacent) entry["adjacent"] = unit.layout.adjacent;
    if (unit.keep_gathered != defaults.keep_gathered) entry["keep_gathered"] = unit.keep_gathered;
    json["units"].push_back(std::move(entry));
  }
  return json.dump(2) + "\n";
}

namespace {

/// The parser would take the last value of a key that is given twice, and end at a zero byte.
Json parse(const std::string& text, const Reader& reader) {
  if (const size_t zero = text.find('\0'); zero != std::string::npos)
    reader.fail(concat("not valid JSON at byte ", zero + 1));
  std::vector<std::set<std::string>> open;  // keys of the objects that have not ended
  const auto look = [&](int /*depth*/, Json::parse_event_t event, const Json& value) {
    if (event == Json::parse_event_t::object_start) open.emplace_back();
    if (event == Json::parse_event_t::object_end) open.pop_back();
    if (event == Json::parse_event_t::key && !open.back().insert(value.get<std::string>()).second) {
      reader.fail(concat("the key \"", escape(value.get<std::string>()), "\" is given twice"),
                  "each key of an object once");
    }
    return true;
  };
  try {
    return Json::parse(text, look);
  } catch (const Json::parse_error& error) {
    reader.fail(concat("not valid JSON at byte ", error.byte));
  } catch (const Json::out_of_range&) {
    reader.fail("a number is beyond the range of a double");
  }
}

}  // namespace

Plan plan_from_json(const std::string& text, const std::string& where) {
  const Reader reader(where);
  const Json json = parse(text, reader);
  const int64_t version = reader.version(json);
  std::vector<std::string> keys = {"format", "version", "world", "prefetch", "units"}, optional = {};
  if (version >= 2) {
    keys.insert(keys.end(), {"stages", "virtual_stages", "micro_batches", "schedule", "first_unit"});
    optional = {"ahead"};
  }
  reader.keys(json, "a plan", keys, optional);
  if (reader.text(json, "format") != kFormat) {
    reader.fail(concat("\"format\" is \"", escape(json["format"].get<std::string>()), '"'),
                concat('"', kFormat, '"'));
  }
  Plan plan;
  plan.world = reader.integer(json, "world", 1, kLargestWorld);
  plan.prefetch = reader.integer(json, "prefetch", 0, kLargestPrefetch);
  if (version >= 2) {
    plan.stages = reader.integer(json, "stages", 1, kLargestWorld);
    plan.virtual_stages = reader.integer(json, "virtual_stages", 1, kLargestVirtual);
    plan.micro_batches = reader.integer(json, "micro_batches", 0, kLargestMicroBatches);
    plan.schedule = reader.choice(json, "schedule", kSchedules);
    if (json.contains("ahead")) plan.ahead = reader.integer(json, "ahead", 0, 1);
    plan.first_unit = reader.integers(json, "first_unit", 0, kLargestUnit);
  }
  if (!json["units"].is_array() || json["units"].empty()) {
    reader.fail("\"units\" has no unit", "a list of at least one unit");
  }
  for (const auto& unit : json["units"]) plan.units.push_back(reader.unit(unit, version));
  check(plan, where);
  return plan;
}

}  // namespace tessera::plan
