// SPDX-License-Identifier: Apache-2.0
#include "tessera/plan/galvatron_settings.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/base/words.h"
#include "tessera/plan/json_fields.h"

namespace tessera::plan {
namespace {

using PlainJson = nlohmann::json;

constexpr size_t kMostEntries = 65'536;  // of a list: more than any model has layers

[[noreturn]] void refuse_text(const std::string& problem, const std::string& where,
                              const std::string& expected, const std::string& hint = "") {
  user_error({.where = "plan.read_galvatron",
              .problem = concat(problem, where.empty() ? "" : concat(" (", where, ")")),
              .expected = expected,
              .hint = hint});
}

/// Nothing: a value that is not an integer or a boolean.
std::optional<std::string> integer_text(const PlainJson& value) {
  if (value.is_boolean()) return value.get<bool>() ? "1" : "0";
  if (value.is_number_integer()) return value.dump();
  return std::nullopt;
}

std::string value_text(const std::string& key, const PlainJson& value, const std::string& where) {
  constexpr const char* kKinds = "an integer, a list of integers or a string";
  if (value.is_string()) return value.get<std::string>();
  if (const auto text = integer_text(value)) return *text;
  if (!value.is_array()) {
    const std::string shown = value.is_number() ? value.dump() : value.type_name();
    refuse_text(concat(escape(key), " is ", shown), where, kKinds);
  }
  std::vector<std::string> entries;
  for (const PlainJson& entry : value) {
    const auto text = integer_text(entry);
    if (!text)
      refuse_text(concat("entry ", entries.size(), " of ", escape(key), " is no integer"), where, kKinds);
    entries.push_back(*text);
  }
  return join(entries, ",");
}

GalvatronSettings read_json(const std::string& text, const std::string& where) {
  PlainJson json;
  try {
    json = PlainJson::parse(text);
  } catch (const PlainJson::parse_error& error) {
    refuse_text(concat("not valid JSON at byte ", error.byte), where, "a plan that Galvatron wrote");
  } catch (const PlainJson::out_of_range&) {
    refuse_text("a number is beyond the range of a double", where, "");
  }
  if (const auto& key = json_structure(text).key_twice)
    refuse_text(concat(escape(*key), " is given twice"), where, "one value");
  GalvatronSettings settings;
  for (const auto& [key, value] : json.items()) settings[key] = value_text(key, value, where);
  return settings;
}

/// The next assignment of `text`, without comments, which leaves `text`. Separators inside of brackets and
/// quotes separate nothing.
std::string take_assignment(std::string_view& text) {
  std::string taken;
  int64_t depth = 0;
  char quote = 0;
  size_t at = 0;
  for (; at < text.size(); ++at) {
    const char c = text[at];
    if (quote != 0) {
      if (c == quote) quote = 0;
    } else if (c == '#') {
      at = std::min(text.find('\n', at), text.size()) - 1;  // the line end itself still separates
      continue;
    } else if (c == '"' || c == '\'') {
      quote = c;
    } else if (c == '[') {
      ++depth;
    } else if (c == ']') {
      --depth;
    } else if (depth <= 0 && (c == ',' || c == ';' || c == '\n')) {
      break;
    }
    taken += c;
  }
  text.remove_prefix(std::min(at + 1, text.size()));
  return std::string(trimmed(taken));
}

/// Python's booleans as 1 and 0, strings without their quotes.
std::string plain_value(std::string_view text) {
  text = trimmed(text);
  const bool quoted = text.size() >= 2 && (text.front() == '"' || text.front() == '\'');
  if (quoted && text.back() == text.front()) return std::string(text.substr(1, text.size() - 2));
  const std::string word = lower(text);
  if (word == "true") return "1";
  return word == "false" ? "0" : std::string(text);
}

GalvatronSettings read_assignments(std::string_view text, const std::string& where) {
  constexpr size_t kShown = 40;
  GalvatronSettings settings;
  while (!text.empty()) {
    const std::string assignment = take_assignment(text);
    if (assignment.empty()) continue;
    const size_t sign = assignment.find('=');
    const std::string name(trimmed(std::string_view(assignment).substr(0, sign)));
    if (sign == std::string::npos || name.empty()) {
      refuse_text(concat("'", escape(assignment.substr(0, kShown)), "' is no setting of Galvatron"), where,
                  "NAME=VALUE, or a JSON object", "leave out all lines but the assignments");
    }
    if (!settings.emplace(name, plain_value(std::string_view(assignment).substr(sign + 1))).second)
      refuse_text(concat(escape(name), " is given twice"), where, "one value");
  }
  return settings;
}

/// Reads the forms of a list from left to right.
class ListScanner {
 public:
  explicit ListScanner(std::string_view text) : text_(text) {}

  bool at_end() {
    skip_blanks();
    return text_.empty();
  }

  bool accept(char c) {
    skip_blanks();
    if (text_.empty() || text_.front() != c) return false;
    text_.remove_prefix(1);
    return true;
  }

  std::optional<int64_t> integer() {
    skip_blanks();
    const size_t begin = text_.starts_with('-') ? 1 : 0;
    const size_t end = std::min(text_.find_first_not_of("0123456789", begin), text_.size());
    const auto value = parse_number<int64_t>(text_.substr(0, end));
    if (value) text_.remove_prefix(end);
    return value;
  }

  /// "1, 1, 0": at least one.
  bool integers(std::vector<int64_t>* values) {
    do {
      const auto value = integer();
      if (!value || values->size() == kMostEntries) return false;
      values->push_back(*value);
    } while (accept(','));
    return true;
  }

  /// "[1, 0]", "[1]*32" or "32*[1]", appended to `values`.
  bool term(std::vector<int64_t>* values) {
    int64_t times = 1;
    if (!accept('[')) {
      const auto before = integer();
      if (!before || !accept('*') || !accept('[')) return false;
      times = *before;
    }
    std::vector<int64_t> entries;
    if (!accept(']') && (!integers(&entries) || !accept(']'))) return false;
    if (accept('*')) {
      const auto after = integer();
      if (!after || times != 1) return false;
      times = *after;
    }
    const auto most = static_cast<int64_t>(kMostEntries);
    if (times < 0 || times > most ||
        entries.size() * static_cast<size_t>(times) + values->size() > kMostEntries)
      return false;
    for (int64_t i = 0; i < times; ++i) values->insert(values->end(), entries.begin(), entries.end());
    return true;
  }

 private:
  void skip_blanks() {
    const size_t blanks = text_.find_first_not_of(" \t\r\n");
    text_.remove_prefix(std::min(blanks, text_.size()));
  }

  std::string_view text_;
};

}  // namespace

GalvatronSettings read_galvatron(const std::string& text, const std::string& where) {
  return trimmed(text).starts_with('{') ? read_json(text, where) : read_assignments(text, where);
}

std::optional<std::vector<int64_t>> parse_galvatron_list(std::string_view text) {
  ListScanner scanner(text);
  std::vector<int64_t> values;
  bool fits = true;
  if (text.find('[') == std::string_view::npos) {
    fits = scanner.integers(&values);
  } else {
    do {
      fits = scanner.term(&values);
    } while (fits && scanner.accept('+'));
  }
  if (!fits || !scanner.at_end()) return std::nullopt;
  return values;
}

}  // namespace tessera::plan
