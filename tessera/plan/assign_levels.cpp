// SPDX-License-Identifier: Apache-2.0
#include <optional>
#include <regex>
#include <sstream>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/base/words.h"
#include "tessera/plan/spans.h"

namespace tessera::plan {
namespace {

[[noreturn]] void bad_rule(const std::string& rule, const std::string& why) {
  user_error({.where = "plan.assign_levels",
              .problem = concat("shard.units has the rule '", escape(rule), "', but ", why),
              .expected = "rules such as blocks.0-19=replicate or blocks.20=zero3+recompute+ranks8"});
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

constexpr const char* kForm = "UNITS=LEVEL[+recompute][+ranksN]";

/// What stands behind the level.
struct Suffixes {
  bool recompute = false;
  std::optional<int64_t> ranks;
};

Suffixes read_suffixes(const std::string& rule, const std::string& text) {
  Suffixes found;
  std::istringstream words(text);
  std::string word;
  std::getline(words, word, '+');  // before the first +
  while (std::getline(words, word, '+')) {
    if (word == "recompute" && !found.recompute) {
      found.recompute = true;
    } else if (word.starts_with("ranks") && !found.ranks) {
      found.ranks = parse_number<int64_t>(std::string_view(word).substr(std::string_view("ranks").size()));
      if (!found.ranks || *found.ranks < 0) bad_rule(rule, concat("+", word, " has no number of ranks"));
    } else {
      bad_rule(rule, concat("it does not have the form ", kForm));
    }
  }
  return found;
}

void assign(Plan* plan, const std::string& rule, int64_t shard_ranks) {
  static const std::regex form(
      "\\s*(?:(stem|head)|(\\w+)\\.(\\d{1,9})(?:-(\\d{1,9}))?)\\s*=\\s*(\\w+)((?:\\+\\w+)*)\\s*");
  std::smatch parts;
  if (!std::regex_match(rule, parts, form)) bad_rule(rule, concat("it does not have the form ", kForm));
  const Suffixes suffixes = read_suffixes(rule, parts[6]);
  if (suffixes.recompute && parts[1].matched) bad_rule(rule, "only blocks can be recomputed");
  check_range(*plan, rule, parts);
  const Level level = level_from_string(parts[5]);
  if (level == Level::kReplicate && suffixes.ranks)
    bad_rule(rule, "a replicated unit is not split over ranks");
  for (auto& unit : plan->units) {
    if (!names(parts, unit.name)) continue;
    const int64_t all = data_parallel_span(*plan, unit).size;
    if (suffixes.ranks.value_or(0) > 0 && all % *suffixes.ranks != 0) {
      bad_rule(rule, concat(*suffixes.ranks, " does not divide the ", all, all == 1 ? " rank" : " ranks",
                            " that train"));
    }
    unit.level = level;
    unit.recompute = suffixes.recompute ? Recompute::kAll : Recompute::kNone;
    unit.shard = level == Level::kReplicate ? 0 : suffixes.ranks.value_or(shard_ranks);
  }
}

}  // namespace

void assign_levels(Plan* plan, const std::string& rules, int64_t shard_ranks) {
  if (rules.find_first_not_of(" \t") == std::string::npos) return;
  std::istringstream list(rules);
  for (std::string rule; std::getline(list, rule, ',');) assign(plan, rule, shard_ranks);
}

}  // namespace tessera::plan
