// SPDX-License-Identifier: Apache-2.0
#include "tessera/plan/json_fields.h"

#include <set>

namespace tessera::plan {
namespace {

using Json = JsonFields::Json;

class StructureReader final : public nlohmann::json_sax<Json> {
 public:
  JsonStructure structure;

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(size_t) override { return begin(); }
  bool start_array(size_t) override { return begin(); }
  bool end_object() override { return end(); }
  bool end_array() override { return end(); }
  bool key(string_t& key) override {
    if (open_.back().insert(key).second) return true;
    structure.key_twice = key;
    return false;
  }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

 private:
  bool begin() {
    open_.emplace_back();
    structure.too_deep = open_.size() > static_cast<size_t>(kDeepestJson);
    return !structure.too_deep;
  }
  bool end() {
    open_.pop_back();
    return true;
  }

  std::vector<std::set<std::string>> open_;  // keys of the objects and arrays that have not ended
};

}  // namespace

JsonStructure json_structure(const std::string& text) {
  StructureReader reader;
  Json::sax_parse(text, &reader);
  return reader.structure;
}

void JsonFields::fail(const std::string& problem, const std::string& expected,
                      const std::string& hint) const {
  user_error(
      {.where = function_, .problem = concat(problem, " (", file_, ")"), .expected = expected, .hint = hint});
}

// A callback of the parser could look for keys as well, but then each value that ends costs time in
// proportion to those before it. The parser ends at a zero byte.
JsonFields::Json JsonFields::parse(const std::string& text) const {
  if (const size_t zero = text.find('\0'); zero != std::string::npos)
    fail(concat("not valid JSON at byte ", zero + 1));
  const JsonStructure structure = json_structure(text);
  if (structure.too_deep) fail("JSON is nested too deeply", concat("at most ", kDeepestJson, " levels"));
  if (structure.key_twice) {
    fail(concat("the key \"", escape(*structure.key_twice), "\" is given twice"),
         "each key of an object once");
  }
  try {
    return Json::parse(text);
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
