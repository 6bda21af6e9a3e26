// SPDX-License-Identifier: Apache-2.0
#include "tessera/plan/json_fields.h"

#include <set>

namespace tessera::plan {
namespace {

constexpr int kDeepest = 64;  // levels; to show a value calls itself for each of them

}  // namespace

void JsonFields::fail(const std::string& problem, const std::string& expected,
                      const std::string& hint) const {
  user_error(
      {.where = function_, .problem = concat(problem, " (", file_, ")"), .expected = expected, .hint = hint});
}

// The parser would take the last value of a key that is given twice, and end at a zero byte.
JsonFields::Json JsonFields::parse(const std::string& text) const {
  if (const size_t zero = text.find('\0'); zero != std::string::npos)
    fail(concat("not valid JSON at byte ", zero + 1));
  std::vector<std::set<std::string>> open;  // keys of the objects that have not ended
  const auto look = [&](int depth, Json::parse_event_t event, const Json& value) {
    if (depth > kDeepest) fail("JSON is nested too deeply", concat("at most ", kDeepest, " levels"));
    if (event == Json::parse_event_t::object_start) open.emplace_back();
    if (event == Json::parse_event_t::object_end) open.pop_back();
    if (event == Json::parse_event_t::key && !open.back().insert(value.get<std::string>()).second) {
      fail(concat("the key \"", escape(value.get<std::string>()), "\" is given twice"),
           "each key of an object once");
    }
    return true;
  };
  try {
    return Json::parse(text, look);
  } catch (const Json::parse_error& error) {
    fail(concat("not valid JSON at byte ", error.byte));
  } catch (const Json::out_of_range&) {
    fail("a number is beyond the range of a double");
  }
}

void JsonFields::keys(const Json& object, const std::string& what, const std::vector<std::string>& required,
                      const std::vector<std::string>& optional) const {
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

int64_t JsonFields::integer(const Json& object, const char* key, int64_t low, int64_t high) const {
  const Json& value = object[key];
  // An unsigned number beyond int64 turns negative in get<int64_t>() and fails as well.
  if (value.is_number_integer()) {
    const auto number = value.get<int64_t>();
    if (number >= low && number <= high) return number;
  }
  fail(concat('"', key, "\" is ", shown(value)), concat("an integer between ", low, " and ", high));
}

std::vector<int64_t> JsonFields::integers(const Json& object, const char* key, int64_t low,
                                          int64_t high) const {
  if (!object[key].is_array()) fail(concat('"', key, "\" is ", shown(object[key])), "a list of integers");
  std::vector<int64_t> values;
  for (const Json& entry : object[key]) {
    Json one;
    one[key] = entry;
    values.push_back(integer(one, key, low, high));
  }
  return values;
}

std::string JsonFields::text(const Json& object, const char* key) const {
  if (!object[key].is_string()) fail(concat('"', key, "\" is ", shown(object[key])), "a string");
  return object[key].get<std::string>();
}

bool JsonFields::boolean(const Json& object, const char* key) const {
  if (!object[key].is_boolean()) fail(concat('"', key, "\" is ", shown(object[key])), "true or false");
  return object[key].get<bool>();
}

double JsonFields::number(const Json& object, const char* key) const {
  if (!object[key].is_number()) fail(concat('"', key, "\" is ", shown(object[key])), "a number");
  return object[key].get<double>();
}

double JsonFields::number_of_at_least(const Json& object, const char* key, double low) const {
  if (object[key].is_number() && object[key].get<double>() >= low) return object[key].get<double>();
  fail(concat('"', key, "\" is ", shown(object[key])), concat("a number of at least ", low));
}

double JsonFields::number_above(const Json& object, const char* key, double low) const {
  if (object[key].is_number() && object[key].get<double>() > low) return object[key].get<double>();
  fail(concat('"', key, "\" is ", shown(object[key])), concat("a number above ", low));
}

size_t JsonFields::choice_of_names(const Json& object, const char* key,
                                   const std::vector<std::string>& names) const {
  const std::string name = text(object, key);
  const auto at = std::find(names.begin(), names.end(), name);
  if (at == names.end())
    fail(concat('"', key, "\" is \"", escape(name), '"'), concat("one of ", join(names, ", ")));
  return static_cast<size_t>(at - names.begin());
}

std::string JsonFields::shown(const Json& value) {
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > 40) text = text.substr(0, 40) + "...";
  return text;
}

}  // namespace tessera::plan
