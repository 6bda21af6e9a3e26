// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/usage_error.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iterator>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/base/words.h"

namespace tessera::cli {
namespace {

/// The command that was chosen, from the program down: "tessera", "data", "pack".
std::vector<const CLI::App*> chosen_commands(const CLI::App& app) {
  std::vector<const CLI::App*> chain = {&app};
  for (auto next = app.get_subcommands(); !next.empty(); next = chain.back()->get_subcommands()) {
    chain.push_back(next.front());
  }
  return chain;
}

std::string name_of(const std::vector<const CLI::App*>& chain) {
  std::vector<std::string> words;
  for (const CLI::App* command : chain) words.push_back(command->get_name());
  return join(words, " ");
}

std::string did_you_mean(const std::string& near) {
  return near.empty() ? "" : concat("; did you mean ", near, "?");
}

/// What stands where a command should: CLI11 says that one is missing, or what is too much.
std::string unknown_command(const std::vector<const CLI::App*>& chain) {
  std::vector<std::string> names;
  for (const CLI::App* one : chain.back()->get_subcommands(nullptr)) names.push_back(one->get_name());
  const auto words = chain.back()->remaining();
  if (names.empty() || words.empty() || words.front().starts_with("-")) return "";
  return concat(escape(words.front()), " is not a command of ", name_of(chain), ": expected one of ",
                join(names, ", "), did_you_mean(nearest(words.front(), names)));
}

/// The most similar option, else the shortest that says the same and more: --index-dir, --dali-index-dir.
std::string nearest_option(const CLI::App& command, const std::string& word) {
  constexpr size_t kTelling = 4;  // characters
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const auto& name : option->get_lnames()) names.push_back("--" + name);
  }
  const std::string near = nearest(word, names);
  const std::string bare = word.substr(word.find_first_not_of('-'));
  if (!near.empty() || bare.size() < kTelling) return near;
  std::ranges::sort(names, {}, [](const std::string& name) { return name.size(); });
  const auto found =
      std::ranges::find_if(names, [&](const auto& name) { return name.find(bare) != std::string::npos; });
  return found == names.end() ? "" : *found;
}

std::string unknown_option(const std::vector<const CLI::App*>& chain) {
  for (const std::string& full : chain.back()->remaining()) {
    const std::string word = full.substr(0, full.find('='));
    if (!word.starts_with("--") || word.size() < 3 || word.find_first_not_of('-') == std::string::npos)
      continue;
    return concat(escape(word), " is not an option of ", name_of(chain),
                  did_you_mean(nearest_option(*chain.back(), word)));
  }
  return "";
}

/// `--set train.batch 8`: what follows the key is an argument too many.
std::string set_without_value(const std::vector<const CLI::App*>& chain) {
  const CLI::Option* set = chain.back()->get_option_no_throw("--set");
  if (set == nullptr) return "";
  auto words = chain.back()->remaining();
  if (!words.empty() && words.front() == "=") words.erase(words.begin());
  for (const std::string& word : set->results()) {
    if (word.find('=') != std::string::npos) continue;
    return concat("--set ", escape(word), " has no value: write --set ", escape(word), "=",
                  words.empty() ? "VALUE" : escape(words.front()));
  }
  return "";
}

/// An option that has to be given, in the words of its own help.
std::string missing(const std::vector<const CLI::App*>& chain) {
  std::vector<std::string> names;
  for (const CLI::App* one : chain.back()->get_subcommands(nullptr)) names.push_back(one->get_name());
  for (const CLI::Option* option : chain.back()->get_options()) {
    if (!option->get_required() || option->count() > 0) continue;
    return concat(option->get_name(), " is missing: expected ", option->get_description());
  }
  if (names.empty()) return "";
  return concat(name_of(chain), " needs a command: expected one of ", join(names, ", "));
}

/// A word that is no number where one belongs; all options of other types take any word.
std::string no_number(const std::vector<const CLI::App*>& chain) {
  for (const CLI::Option* option : chain.back()->get_options()) {
    const std::string type = option->get_type_name();  // and its range, as in "INT:INT in [1 - 8]"
    const bool number = type.starts_with("FLOAT");
    const bool integer = type.starts_with("INT") || type.starts_with("UINT");
    if (!number && !integer) continue;
    for (const std::string& word : option->results()) {
      const bool fits =
          number ? parse_number<double>(word).has_value() : parse_number<int64_t>(word).has_value();
      if (fits) continue;
      return concat(option->get_name(), " is ", escape(word), ": expected ",
                    integer ? "an integer" : "a number");
    }
  }
  return "";
}

constexpr const char* kNeverEmpty[] = {"--output",  "--output-dir", "--plan",     "--profile", "--html",
                                       "--kernels", "--trace",      "--features", "output",    "OUT",
                                       "DEST",      "--memory",     "--hosts"};

/// `tessera plan search --output ""` writes no file.
bool may_be_empty(const std::string& command, const std::string& option) {
  return command == "tessera plan search" && option == "--output";
}

}  // namespace

std::string empty_path_message(const CLI::App& app) {
  const auto chain = chosen_commands(app);
  const std::string command = name_of(chain);
  for (const CLI::Option* option : chain.back()->get_options()) {
    const std::string name = option->get_name();
    if (std::ranges::find(kNeverEmpty, name) == std::end(kNeverEmpty) || may_be_empty(command, name))
      continue;
    const auto is_empty = [](const std::string& word) { return word.empty(); };
    if (std::ranges::none_of(option->results(), is_empty)) continue;
    return concat("[cli] ", name, " is empty: expected ", option->get_description(), " (see ", command,
                  " --help)");
  }
  return "";
}

std::string usage_message(const CLI::App& app, const CLI::ParseError& error) {
  const auto chain = chosen_commands(app);
  std::string what = unknown_command(chain);
  if (what.empty()) what = unknown_option(chain);
  if (what.empty()) what = set_without_value(chain);
  if (what.empty() && dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) what = missing(chain);
  if (what.empty() && dynamic_cast<const CLI::ConversionError*>(&error) != nullptr) what = no_number(chain);
  if (what.empty()) what = error.what();
  return concat("[cli] ", what, " (see ", name_of(chain), " --help)");
}

}  // namespace tessera::cli
