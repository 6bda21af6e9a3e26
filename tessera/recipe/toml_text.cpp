#include "tessera/recipe/toml_text.h"

#include <toml++/toml.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera::recipe {
namespace {

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
  std::vector<Entry> entries;
  try {
    flatten(toml::parse(text), "", where, entries);
  } catch (const toml::parse_error& error) {
    user_error("recipe.parse", "expected TOML: ", escape(error.description()), " (", where, ":",
               error.source().begin.line, ", column ", error.source().begin.column, ")");
  }
  return entries;
}

std::optional<Entry> parse_toml_value(const std::string& text) {
  try {
    const toml::table table = toml::parse("v = " + text);
    if (table.size() != 1) return {};
    Entry entry{};
    read_value(*table.get("v"), entry);
    return entry;
  } catch (const toml::parse_error&) {
    return {};
  }
}

}  // namespace tessera::recipe
