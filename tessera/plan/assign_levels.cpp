// SPDX-License-Identifier: Apache-2.0
#include <optional>
#include <regex>
#include <sstream>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/base/words.h"
#include "tessera/plan/plan.h"

namespace tessera::plan {
namespace {

[[noreturn]] void bad_rule(const std::string& rule, const std::string& why) {
  user_error({.where = "plan.assign_levels",
              .problem = concat("shard.units has the rule '", escape(rule), "', but ", why),
              .expected = "rules such as blocks.0-19=replicate or blocks.20=zero3+recompute"});
}

/// "blocks.3" -> 3 where the rule says "blocks"; none for other units.
std::optional<int64_t> number_in(const std::string& unit, const std::string& list) {
  if (!unit.starts_with(list + ".")) return std::nullopt;
  return parse_number<int64_t>(std::string_view(unit).substr(list.size() + 1));
}

/// Does the rule name this unit? parts: 1 stem or head, or 2 a list's name with 3 first and 4 last number.
bool names(const std::smatch& parts, const std::string& unit) {
  if (parts[1].matched) return unit == parts[1];
  const auto number = number_in(unit, parts[2]);
  const int64_t first = std::stoll(parts[3]), last = parts[4].matched ? std::stoll(parts[4]) : first;
  return number && *number >= first && *number <= last;
}

/// Refuses a range that is not wholly in the plan.
void check_range(const Plan& plan, const std::string& rule, const std::smatch& parts) {
  if (parts[1].matched) return;
  const int64_t first = std::stoll(parts[3]), last = parts[4].matched ? std::stoll(parts[4]) : first;
  if (first > last) bad_rule(rule, "its range is empty");
  const std::string list = parts[2];
  int64_t length = 0;
  std::vector<std::string> units;
  for (const auto& unit : plan.units) {
    length += number_in(unit.name, list) ? 1 : 0;
    units.push_back(unit.name);
  }
  if (length == 0) bad_rule(rule, concat("the model's units are ", join(units, ", ")));
  if (last >= length) bad_rule(rule, concat("the model's ", list, " are 0 to ", length - 1));
}

void assign(Plan* plan, const std::string& rule) {
  static const std::regex form(
      "\\s*(?:(stem|head)|(\\w+)\\.(\\d{1,9})(?:-(\\d{1,9}))?)\\s*=\\s*(\\w+)(\\+recompute)?\\s*");
  std::smatch parts;
  if (!std::regex_match(rule, parts, form))
    bad_rule(rule, "it does not have the form UNITS=LEVEL[+recompute]");
  const bool recompute = parts[6].matched;
  if (recompute && parts[1].matched) bad_rule(rule, "only blocks can be recomputed");
  check_range(*plan, rule, parts);
  const Level level = level_from_string(parts[5]);
  for (auto& unit : plan->units) {
    if (!names(parts, unit.name)) continue;
    unit.level = level;
    unit.recompute = recompute;
  }
}

}  // namespace

void assign_levels(Plan* plan, const std::string& rules) {
  if (rules.find_first_not_of(" \t") == std::string::npos) return;
  std::istringstream list(rules);
  for (std::string rule; std::getline(list, rule, ',');) assign(plan, rule);
}

}  // namespace tessera::plan
