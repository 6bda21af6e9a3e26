// SPDX-License-Identifier: Apache-2.0
// A recipe as text: TOML, differences, help.
#include "tessera/recipe/option.h"

namespace tessera::recipe {
namespace {

std::string printed(Value value) {
  if (auto* text = std::get_if<std::string>(&value)) *text = protect_from_environment(*text);
  if (auto* texts = std::get_if<std::vector<std::string>>(&value)) {
    for (std::string& text : *texts) text = protect_from_environment(text);
  }
  return to_text(value);
}

}  // namespace

std::string to_toml(const Recipe& recipe) {
  std::string out, room;
  for (const auto& option : options()) {
    if (!option.get || !option.applies_to(recipe)) continue;
    const size_t dot = option.key.find('.');
    const bool in_room = dot != std::string::npos;
    if (in_room && option.key.substr(0, dot) != room) {
      room = option.key.substr(0, dot);
      out += "\n[" + room + "]\n";
    }
    std::string line = option.key.substr(in_room ? dot + 1 : 0) + " = " + printed(option.get(recipe));
    if (line.size() < 32) line.resize(32, ' ');
    out += line + "  # " + option.help;
    if (!option.choices.empty()) out += " [" + option.type_text() + "]";
    out += '\n';
  }
  return out;
}

std::vector<std::string> difference(const Recipe& a, const Recipe& b) {
  std::vector<std::string> lines;
  for (const auto& option : options()) {
    if (!option.get || !option.applies_to(a) || !option.applies_to(b)) continue;
    const Value before = option.get(a), after = option.get(b);
    if (before != after) lines.push_back(option.key + ": " + to_text(before) + " -> " + to_text(after));
  }
  return lines;
}

std::vector<OptionHelp> option_help() {
  Recipe defaults;
  std::vector<OptionHelp> rows;
  for (const auto& option : options()) {
    if (!option.applies_to(defaults)) defaults.model = arch::default_model(option.families.front());
    rows.push_back({option.key, option.type_text(), option.get ? to_text(option.get(defaults)) : "",
                    option.help, option.families});
  }
  return rows;
}

}  // namespace tessera::recipe
