// SPDX-License-Identifier: Apache-2.0
#include "tessera/train/layout.h"

#include <filesystem>
#include <optional>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/text.h"
#include "tessera/base/words.h"
#include "tessera/eager/session.h"

namespace tessera::train {
namespace fs = std::filesystem;
namespace {

constexpr const char* kLayoutWhere = "compare.layouts";

std::string quoted(const std::string& text) { return concat("layout '", escape(text), "'"); }

void check_ranks(const std::string& text, int64_t ranks) {
  if (ranks >= 1 && ranks <= kMostThreadRanks) return;
  user_error({.where = kLayoutWhere,
              .problem = concat(quoted(text), " has ", ranks, " ranks"),
              .expected = concat("1 to ", kMostThreadRanks, ": the ranks are threads of one process")});
}

/// The error, with the layout that it is about.
[[noreturn]] void rethrow(const UserError& error, const std::string& text) {
  throw UserError(concat(error.what(), " (", quoted(text), ")"));
}

std::vector<std::string> settings_of(const std::string& text) {
  const char* separator = text.find(';') == std::string::npos ? "," : ";";
  std::vector<std::string> settings;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string word(trimmed(take_until(rest, separator)));
    if (word.empty()) continue;
    if (word.find('=') == std::string::npos) {
      user_error({.where = kLayoutWhere,
                  .problem = concat(quoted(text), " has '", escape(word), "', which is not KEY=VALUE"),
                  .expected = "a plan file, or settings such as ranks=4,shard.level=zero3",
                  .hint = "separate settings by ; where values contain commas"});
    }
    std::string_view value = word;
    const std::string_view key = take_until(value, "=");
    settings.push_back(concat(trimmed(key), "=", trimmed(value)));
  }
  return settings;
}

Layout of_settings(const std::string& text, const MakeRecipe& make_recipe) {
  constexpr std::string_view kRanks = "ranks";
  std::optional<int64_t> ranks;
  std::vector<std::string> sets;
  for (const std::string& setting : settings_of(text)) {
    std::string_view value = setting;
    if (take_until(value, "=") != kRanks) {
      sets.push_back(setting);
      continue;
    }
    const auto number = parse_number<int64_t>(value);
    if (!number) {
      user_error({.where = kLayoutWhere,
                  .problem = concat(quoted(text), ": ranks is '", escape(value), "'"),
                  .expected = "an integer"});
    }
    if (ranks) user_error({.where = kLayoutWhere, .problem = concat(quoted(text), " gives ranks twice")});
    ranks = *number;
  }
  check_ranks(text, ranks.value_or(1));
  recipe::Recipe recipe = make_recipe(sets);
  plan::Plan plan = eager::make_plan(recipe, ranks.value_or(1));
  return {text, std::move(recipe), std::move(plan)};
}

Layout of_file(const std::string& text, const fs::path& path, const MakeRecipe& make_recipe) {
  const int64_t ranks = plan::plan_from_json(read_file(path), path.string()).world;
  check_ranks(text, ranks);
  recipe::Recipe recipe = make_recipe({});
  plan::Plan plan = plan::read_plan(path, recipe.model, ranks);
  return {text, std::move(recipe), std::move(plan)};
}

}  // namespace

Layout read_layout(const std::string& text, const MakeRecipe& make_recipe) {
  std::error_code ignored;
  fs::path path = text;
  if (fs::is_directory(path, ignored)) {
    path /= "plan.json";
    if (!fs::exists(path, ignored)) {
      user_error({.where = kLayoutWhere,
                  .problem = concat("there is no plan.json in the folder of ", quoted(text)),
                  .expected = "the folder of a run"});
    }
  }
  if (fs::exists(path, ignored)) return of_file(text, path, make_recipe);
  if (text.find('=') == std::string::npos) {
    const std::string near = nearest_in_folder(text);
    user_error({.where = kLayoutWhere,
                .problem = concat(quoted(text), " is neither a plan file nor a list of settings"),
                .expected = "the path of a plan.json, or settings such as ranks=4,shard.level=zero3",
                .hint = near.empty() ? "" : concat("did you mean ", near, "?")});
  }
  try {
    return of_settings(text, make_recipe);
  } catch (const UserError& error) {
    const std::string what = error.what();
    if (what.find(quoted(text)) != std::string::npos) throw;
    rethrow(error, text);
  }
}

}  // namespace tessera::train
