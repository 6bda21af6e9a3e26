#include "tessera/recipe/toml_text.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera::recipe {

/// Thrown where the TOML library finds its own assumptions broken.
struct BrokenToml {};
[[noreturn]] static void broken_toml() { throw BrokenToml(); }

}  // namespace tessera::recipe

// Note [Faults of the TOML library]. Version 3.3 asserts on some malformed text ("[#"): an abort in debug
// builds, a wrong promise to the optimizer in release builds. In every build it is to be an error instead. It
// also reaches an "unreachable" place on some non-ASCII characters outside of quotes; first_bare_non_ascii()
// refuses them first.
#undef NDEBUG
#define TOML_ASSERT(expression) ((expression) ? void() : ::tessera::recipe::broken_toml())
#include <toml++/toml.h>

namespace tessera::recipe {
namespace {

/// Where the first byte above 0x7F stands that is in no string and no comment (where TOML is ASCII); npos:
/// nowhere.
size_t first_bare_non_ascii(const std::string& text) {
  size_t i = text.starts_with("\xEF\xBB\xBF") ? 3 : 0;
  while (i < text.size()) {
    const char c = text[i];
    if (c == '#') {
      i = std::min(text.find('\n', i), text.size());
    } else if (c == '"' || c == '\'') {
      const bool multi_line = text.compare(i, 3, std::string(3, c)) == 0;
      const std::string end(multi_line ? 3 : 1, c);
      for (i += end.size(); i < text.size() && text.compare(i, end.size(), end) != 0; ++i) {
        if (text[i] == '\n' && !multi_line) break;  // a string that does not end: the parser says so
        if (text[i] == '\\' && c == '"') ++i;
      }
      i += end.size();
    } else if (static_cast<unsigned char>(c) >= 0x80) {
      return i;
    } else {
      ++i;
    }
  }
  return std::string::npos;
}

std::string shortened(std::string text) {
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

void read_value(const toml::node& node, Entry& entry) {
  const auto set = [&entry](Value value, const char* kind) {
    entry.found = concat(kind, " ", shortened(to_text(value)));
    entry.value = std::move(value);
  };
  if (const auto* flag = node.as_boolean()) return set(flag->get(), "the flag");
  if (const auto* integer = node.as_integer()) return set(integer->get(), "the integer");
  if (const auto* number = node.as_floating_point()) return set(number->get(), "the number");
  if (const auto* text = node.as_string()) return set(text->get(), "the text");
  if (const auto* list = node.as_array()) {
    std::vector<double> numbers;
    for (const auto& element : *list) {
      if (!element.is_number()) break;
      numbers.push_back(*element.value<double>());
    }
    if (numbers.size() == list->size()) return set(std::move(numbers), "the list");
    entry.found = "a list that holds more than numbers";
  } else {
    entry.found = node.is_table() ? "a table" : "a date or time";
  }
}

void flatten(const toml::table& table, const std::string& prefix, const std::string& where,
             std::vector<Entry>& out) {
  for (const auto& [key, node] : table) {
    Entry entry{prefix + std::string(key.str()), {}, {}, concat(where, ":", node.source().begin.line)};
    const auto* inner = node.as_table();
    if (inner != nullptr && prefix.empty()) {
      flatten(*inner, entry.key + ".", where, out);
      continue;
    }
    read_value(node, entry);
    out.push_back(std::move(entry));
  }
}

}  // namespace

std::vector<Entry> parse_toml(const std::string& text, const std::string& where) {
  if (const size_t at = first_bare_non_ascii(text); at != std::string::npos) {
    const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n');
    user_error("recipe.parse", "expected TOML: found a character that must be in quotes (", where, ":", line,
               ")");
  }
  std::vector<Entry> entries;
  try {
    flatten(toml::parse(text), "", where, entries);
  } catch (const toml::parse_error& error) {
    user_error("recipe.parse", "expected TOML: ", escape(error.description()), " (", where, ":",
               error.source().begin.line, ", column ", error.source().begin.column, ")");
  } catch (const BrokenToml&) {
    user_error("recipe.parse", "expected TOML: found a key or table header that cannot be read (", where,
               ")");
  }
  return entries;
}

std::optional<Entry> parse_toml_value(const std::string& text) {
  if (first_bare_non_ascii(text) != std::string::npos) return {};
  try {
    const toml::table table = toml::parse("v = " + text);
    if (table.size() != 1) return {};
    Entry entry{};
    read_value(*table.get("v"), entry);
    return entry;
  } catch (const toml::parse_error&) {
    return {};
  } catch (const BrokenToml&) {
    return {};
  }
}

}  // namespace tessera::recipe
