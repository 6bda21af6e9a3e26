// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <sstream>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/base/words.h"
#include "tessera/plan/names.h"
#include "tessera/plan/sized_units.h"
#include "tessera/plan/spans.h"

namespace tessera::plan {
namespace {

[[noreturn]] void bad_rule(const std::string& rule, const std::string& why, const std::string& hint = "") {
  user_error({.where = "plan.unit_rules",
              .problem = concat("shard.units has the rule '", escape(rule), "', but ", why),
              .expected = "rules such as blocks.0-19=replicate or blocks.20=zero3+recompute+ranks8",
              .hint = hint});
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

// More than any rule needs. std::regex takes stack for each character, and would run out of it.
constexpr size_t kLongestRule = 512, kShownOfLongRules = 40;

constexpr const char* kForm =
    "UNITS=WORD+WORD... with a level, recompute or keep_sums, ranksN, tensorN, adjacent or strided, "
    "keep_gathered or regather";

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

/// The words of a rule.
struct Words {
  std::optional<Level> level;
  std::optional<Recompute> recompute;
  std::optional<int64_t> ranks, tensor;
  std::optional<bool> adjacent, keep_gathered;
};

class WordReader {
 public:
  WordReader(const std::string& rule, const std::string& text) : rule_(rule) {
    for (const std::string& word : split(text, '+')) read(word);
  }
  const Words& words() const { return words_; }

 private:
  template <typename T>
  void set(std::optional<T>& field, T value, const char* what) {
    if (field) bad_rule(rule_, concat("it gives ", what, " twice"));
    field = value;
  }

  /// N of "ranksN".
  int64_t number(const std::string& word, size_t name, int64_t low) const {
    const auto value = parse_number<int64_t>(std::string_view(word).substr(name));
    if (!value || *value < low) bad_rule(rule_, concat("'", word, "' has no number of ranks"));
    return *value;
  }

  void read(const std::string& word) {
    constexpr std::string_view kRanks = "ranks", kTensor = "tensor";
    if (word == "recompute" || word == "keep_sums") {
      set(words_.recompute, word == "recompute" ? Recompute::kAll : Recompute::kKeepSums, "recompute");
    } else if (word == "adjacent" || word == "strided") {
      set(words_.adjacent, word == "adjacent", "adjacent or strided");
    } else if (word == "keep_gathered" || word == "regather") {
      set(words_.keep_gathered, word == "keep_gathered", "keep_gathered or regather");
    } else if (word.starts_with(kRanks)) {
      set(words_.ranks, number(word, kRanks.size(), 0), "ranks");
    } else if (word.starts_with(kTensor)) {
      set(words_.tensor, number(word, kTensor.size(), 1), "tensor");
    } else {
      const bool known = std::ranges::any_of(kLevels, [&](Level level) { return to_string(level) == word; });
      if (!known) refuse_word(word);
      set(words_.level, level_from_string(word), "the level");
    }
  }

  [[noreturn]] void refuse_word(const std::string& word) const {
    std::vector<std::string> words = names_of(kLevels);
    words.insert(words.end(), {"recompute", "keep_sums", "ranksN", "tensorN", "adjacent", "strided",
                               "keep_gathered", "regather"});
    const std::string near = nearest(word, words);
    bad_rule(rule_, concat("'", escape(word), "' is not a word of rules (", join(words, ", "), ")"),
             near.empty() ? "" : concat("did you mean ", near, "?"));
  }

  const std::string& rule_;
  Words words_;
};

std::string ranks_that_train(int64_t ranks) {
  return concat("the ", ranks, ranks == 1 ? " rank that trains" : " ranks that train");
}

/// Applies one rule to one unit.
class RuleForUnit {
 public:
  RuleForUnit(const Plan& plan, const std::string& rule, const Words& words, const RuleDefaults& defaults)
      : plan_(plan), rule_(rule), words_(words), defaults_(defaults) {}

  /// `standard`: the unit before all rules. `cuttable`: has it layers that can be cut?
  UnitPlan apply(const UnitPlan& standard, bool cuttable) const {
    UnitPlan unit = standard;
    unit.level = words_.level.value_or(standard.level);
    unit.recompute = words_.recompute.value_or(Recompute::kNone);
    set_layout(unit, cuttable);
    set_shard(unit);
    return unit;
  }

 private:
  void set_layout(UnitPlan& unit, bool cuttable) const {
    const int64_t tensor = words_.tensor.value_or(unit.layout.tensor);
    if (tensor > 1 && !cuttable) {
      bad_rule(rule_, concat("tensor parallelism cuts nothing of ", unit.name));
    }
    if (plan_.stage_ranks() % tensor != 0) {
      bad_rule(rule_, concat("tensor", tensor, " does not divide ", ranks_that_train(plan_.stage_ranks())));
    }
    unit.layout = {};
    unit.keep_gathered = false;
    if (tensor > 1) {
      unit.layout = {tensor, words_.adjacent.value_or(defaults_.adjacent)};
      unit.keep_gathered = words_.keep_gathered.value_or(defaults_.keep_gathered);
      return;
    }
    const bool keeps_sums = words_.recompute == Recompute::kKeepSums;
    if (!keeps_sums && !words_.adjacent && !words_.keep_gathered) return;
    const std::string word = keeps_sums        ? "keep_sums"
                             : words_.adjacent ? (*words_.adjacent ? "adjacent" : "strided")
                                               : (*words_.keep_gathered ? "keep_gathered" : "regather");
    bad_rule(rule_,
             concat(word, " has no effect without tensor parallelism, and ", unit.name, " has tensor 1"));
  }

  void set_shard(UnitPlan& unit) const {
    const bool replicated = unit.level == Level::kReplicate;
    if (replicated && words_.ranks) bad_rule(rule_, "a replicated unit is not split over ranks");
    unit.shard = replicated ? 0 : words_.ranks.value_or(defaults_.shard_ranks);
    const int64_t all = data_parallel_span(plan_, unit).size;
    if (unit.shard == 0 || all % unit.shard == 0) return;
    bad_rule(rule_, concat(words_.ranks ? "" : "shard.ranks = ", unit.shard, " does not divide ",
                           unit.is_cut() ? concat("the ", all, " data-parallel ", all == 1 ? "rank" : "ranks",
                                                  " of ", unit.name)
                                         : ranks_that_train(all)));
  }

  const Plan& plan_;
  const std::string& rule_;
  const Words& words_;
  const RuleDefaults& defaults_;
};

/// The rules of one plan, applied one after another.
class Rules {
 public:
  Rules(Plan* plan, const arch::ModelConfig& config, const RuleDefaults& defaults)
      : plan_(plan), standard_(*plan), cuttable_(cuttable_units(config)), defaults_(defaults) {}

  void apply(const std::string& rule) {
    static const std::regex form(
        "\\s*(?:(stem|head)|(\\w+)\\.(\\d{1,9})(?:-(\\d{1,9}))?)\\s*=\\s*(\\w+(?:\\+\\w+)*)\\s*");
    std::smatch parts;
    if (rule.size() > kLongestRule) {
      bad_rule(rule.substr(0, kShownOfLongRules) + "...",
               concat("it has ", rule.size(), " characters, more than ", kLongestRule));
    }
    if (!std::regex_match(rule, parts, form)) {
      refuse_unknown_unit(rule);
      bad_rule(rule, concat("it does not have the form ", kForm));
    }
    const std::string text = parts[5];
    const WordReader reader(rule, text);
    if (reader.words().recompute && parts[1].matched) bad_rule(rule, "only blocks can be recomputed");
    check_range(*plan_, rule, parts);
    const RuleForUnit for_unit(*plan_, rule, reader.words(), defaults_);
    for (size_t i = 0; i < plan_->units.size(); ++i) {
      const UnitPlan& unit = standard_.units[i];
      if (!names(parts, unit.name)) continue;
      refuse_second(rule, unit.name, reader.words().tensor.has_value());
      plan_->units[i] = for_unit.apply(unit, cuttable_.contains(unit.name));
    }
  }

 private:
  /// Of a rule that only its units are wrong with.
  void refuse_unknown_unit(const std::string& rule) const {
    static const std::regex form("\\s*(\\w+)\\s*=\\s*(\\w+(?:\\+\\w+)*)\\s*");
    std::smatch parts;
    if (!std::regex_match(rule, parts, form)) return;
    std::vector<std::string> units;
    for (const UnitPlan& unit : plan_->units) units.push_back(unit.name);
    bad_rule(rule,
             concat("'", parts[1].str(), "' is neither a unit nor a range of units such as blocks.0-3; the ",
                    "model's units are ", join(units, ", ")));
  }

  /// A later rule replaces an earlier one, and would do so with a tensor degree as well, unnoticed.
  void refuse_second(const std::string& rule, const std::string& unit, bool gives_tensor) {
    const auto [earlier, is_first] = gives_tensor_.try_emplace(unit, gives_tensor);
    if (!is_first && (gives_tensor || earlier->second))
      bad_rule(rule, concat(unit, " has two rules, of which one gives tensorN"));
  }

  Plan* plan_;
  const Plan standard_;  // before all rules
  const std::set<std::string> cuttable_;
  const RuleDefaults& defaults_;
  std::map<std::string, bool> gives_tensor_;  // of units that a rule has named
};

/// One word for any number of ranks; "": there is none.
std::string for_any_ranks(const std::string& word, bool whole_layers) {
  if (word.starts_with("ranks")) return "";
  if (!whole_layers) return word;
  if (word == "keep_sums") return "recompute";
  for (const char* name : {"tensor", "adjacent", "strided", "keep_gathered", "regather"}) {
    if (word.starts_with(name)) return "";
  }
  return word;
}

}  // namespace

void apply_unit_rules(Plan* plan, const arch::ModelConfig& config, const std::string& rules,
                      const RuleDefaults& defaults) {
  if (rules.find_first_not_of(" \t") == std::string::npos) return;
  Rules all(plan, config, defaults);
  for (const std::string& rule : split(rules, ',')) all.apply(rule);
}

std::string rules_for_any_ranks(const std::string& rules, bool whole_layers) {
  std::vector<std::string> kept;
  for (const std::string& rule : split(rules, ',')) {
    const size_t equals = rule.find('=');
    if (equals == std::string::npos) {
      kept.push_back(rule);
      continue;
    }
    std::vector<std::string> words;
    for (const std::string& word : split(rule.substr(equals + 1), '+')) {
      const size_t begin = std::min(word.find_first_not_of(" \t"), word.size()),
                   end = word.find_last_not_of(" \t") + 1;
      const std::string found = for_any_ranks(word.substr(begin, std::max(begin, end) - begin), whole_layers);
      if (!found.empty()) words.push_back(found);
    }
    if (!words.empty()) kept.push_back(concat(rule.substr(0, equals), "=", join(words, "+")));
  }
  return join(kept, ",");
}

}  // namespace tessera::plan
