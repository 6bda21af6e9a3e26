#include <regex>
#include <sstream>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/plan/plan.h"

namespace tessera::plan {
namespace {

[[noreturn]] void bad_rule(const std::string& rule, const std::string& why) {
  user_error("plan.assign_levels", "shard.units must hold rules such as blocks.0-19=replicate or ",
             "blocks.20=zero3+recompute: found '", escape(rule), "' (", why, ")");
}

/// Places in plan.units, first and last.
std::pair<int64_t, int64_t> units_of(const std::string& rule, const std::smatch& parts, int64_t depth) {
  if (parts[1] == "stem") return {0, 0};
  if (parts[1] == "head") return {depth + 1, depth + 1};
  const int64_t first = std::stoll(parts[2]), last = parts[3].matched ? std::stoll(parts[3]) : first;
  if (first > last) bad_rule(rule, "the range is empty");
  if (last >= depth) bad_rule(rule, concat("the model's blocks are 0 to ", depth - 1));
  return {first + 1, last + 1};
}

void assign(Plan* plan, const std::string& rule) {
  static const std::regex form(
      "\\s*(stem|head|blocks\\.(\\d{1,9})(?:-(\\d{1,9}))?)\\s*=\\s*(\\w+)(\\+recompute)?\\s*");
  std::smatch parts;
  if (!std::regex_match(rule, parts, form)) bad_rule(rule, "UNITS=LEVEL[+recompute] was expected");
  const bool recompute = parts[5].matched;
  if (recompute && parts[2].str().empty()) bad_rule(rule, "only blocks can be computed again");
  const auto [first, last] = units_of(rule, parts, static_cast<int64_t>(plan->units.size()) - 2);
  const Level level = level_from_string(parts[4]);
  for (int64_t i = first; i <= last; ++i) {
    plan->units[static_cast<size_t>(i)].level = level;
    plan->units[static_cast<size_t>(i)].recompute = recompute;
  }
}

}  // namespace

void assign_levels(Plan* plan, const std::string& rules) {
  if (rules.find_first_not_of(" \t") == std::string::npos) return;
  std::istringstream list(rules);
  for (std::string rule; std::getline(list, rule, ',');) assign(plan, rule);
}

}  // namespace tessera::plan
