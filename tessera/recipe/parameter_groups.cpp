// SPDX-License-Identifier: Apache-2.0
#include "tessera/recipe/parameter_groups.h"

#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <regex>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/base/words.h"

namespace tessera::recipe {
namespace {

[[noreturn]] void bad_group(const std::string& text, const std::string& found) {
  user_error({.where = "recipe.groups",
              .problem = concat("optimizer.groups has the entry \"", escape(text), "\" with ", found),
              .expected = "entries such as \"head.*: lr_scale=10, weight_decay=0\" or \"stem: freeze\""});
}

double number_of(std::string_view word, const std::string& group) {
  const auto value = parse_number<double>(word);
  if (!value || !(*value >= 0 && *value <= 1000)) {
    bad_group(group, concat("\"", escape(word), "\" where a number from 0 to 1000 belongs"));
  }
  return *value;
}

bool fits(const std::string& pattern, const std::string& name) {
  return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

// More than any parameter's name has. std::regex takes stack for each character, and would run out of it.
constexpr size_t kLongestPattern = 1024, kShownOfLongEntries = 40;

void check_length(const std::string& pattern, const std::string& text) {
  if (pattern.size() <= kLongestPattern) return;
  bad_group(text.substr(0, kShownOfLongEntries) + "...",
            concat("a pattern of ", pattern.size(), " characters"));
}

/// [10-11] fits one character of 1, 0 to 1, and 1: nobody means that.
void check_pattern(const std::string& pattern, const std::string& text) {
  static const std::regex numbers("\\[[!^]?([0-9]{2,}-[0-9]+|[0-9]+-[0-9]{2,})\\]");
  std::smatch found;
  if (!std::regex_search(pattern, found, numbers)) return;
  user_error({.where = "recipe.groups",
              .problem = concat("optimizer.groups has the entry \"", escape(text), "\" with ", found.str(),
                                ", but brackets match a single character"),
              .expected = "single characters between brackets, such as [0-5]",
              .hint = "1[0-5] matches 10 to 15"});
}

}  // namespace

ParameterGroups::ParameterGroups(const OptimizerRecipe& optimizer) : optimizer_(optimizer) {
  for (const std::string& text : optimizer.groups) {
    Group group{text, {}, {}, {}, false};
    std::string_view rest = text;
    group.pattern = trimmed(take_until(rest, ":"));
    if (group.pattern.empty()) bad_group(text, "no pattern");
    if (trimmed(rest).empty()) bad_group(text, "nothing after the pattern");
    check_length(group.pattern, text);
    check_pattern(group.pattern, text);
    while (!rest.empty()) {
      std::string_view value = trimmed(take_until(rest, ","));
      const bool has_value = value.find('=') != std::string_view::npos;
      const std::string_view key = trimmed(take_until(value, "="));
      if (key == "freeze" && !has_value) {
        group.freeze = true;
      } else if (key == "lr_scale" && has_value) {
        group.lr_scale = number_of(trimmed(value), text);
      } else if (key == "weight_decay" && has_value) {
        group.weight_decay = number_of(trimmed(value), text);
      } else {
        bad_group(text, concat("\"", escape(key), has_value ? "=\"" : "\""));
      }
    }
    groups_.push_back(std::move(group));
  }
}

Treatment ParameterGroups::of(const std::string& name, bool matrix, int64_t units_after) const {
  Treatment treatment;
  treatment.lr_scale = std::pow(optimizer_.layer_decay, static_cast<double>(units_after));
  if (matrix || optimizer_.no_decay == "none") treatment.weight_decay = optimizer_.weight_decay;
  bool frozen = false;
  for (const Group& group : groups_) {
    if (!fits(group.pattern, name)) continue;
    treatment.lr_scale *= group.lr_scale.value_or(1);
    treatment.weight_decay = group.weight_decay.value_or(treatment.weight_decay);
    frozen = frozen || group.freeze;
  }
  if (frozen) treatment.lr_scale = 0;
  return treatment;
}

std::vector<ParameterGroups::Match> ParameterGroups::matches(const std::vector<std::string>& names) const {
  std::vector<Match> all;
  for (const Group& group : groups_) {
    Match match{group.text, 0, "", ""};
    for (const std::string& name : names) {
      if (!fits(group.pattern, name)) continue;
      if (match.parameters++ == 0) match.first = name;
      match.last = name;
    }
    if (match.parameters == 0) {
      const std::string near = nearest(group.pattern, names);
      user_error(
          {.where = "recipe.groups",
           .problem = concat("optimizer.groups has the entry \"", escape(group.text),
                             "\", which matches no parameter"),
           .expected = near.empty() ? "a pattern that matches a name such as blocks.0.attn.qkv.weight" : "",
           .hint = near.empty() ? "" : concat("did you mean \"", near, "\"?")});
    }
    all.push_back(std::move(match));
  }
  return all;
}

int64_t frozen_units(const arch::ModelConfig& model, const OptimizerRecipe& optimizer) {
  const ParameterGroups groups(optimizer);
  const std::vector<std::string> units = arch::unit_names(model);
  int64_t frozen = std::ssize(units);
  for (const arch::ParameterSpec& spec : arch::parameters(model)) {
    if (spec.buffer) continue;
    const int64_t unit = std::ranges::find(units, spec.unit) - units.begin();
    const Treatment treatment = groups.of(spec.name, spec.decay, std::ssize(units) - 1 - unit);
    if (treatment.lr_scale != 0) frozen = std::min(frozen, unit);
  }
  return frozen;
}

}  // namespace tessera::recipe
