// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/class_names.h"

#include <algorithm>
#include <numeric>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/text.h"
#include "tessera/base/words.h"

namespace tessera::data {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kBlanks(" \t\r\n\0", 5);

std::string_view trim(std::string_view text) {
  const size_t first = text.find_first_not_of(kBlanks);
  return first == std::string_view::npos ? ""
                                         : text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

}  // namespace

std::vector<std::string> read_class_names(const fs::path& file) {
  return parse_class_names(read_file(file), file.string());
}

std::vector<std::string> parse_class_names(std::string_view text, const std::string& where) {
  std::string_view rest = trim(text);
  std::vector<std::string> names;
  while (!rest.empty()) {
    names.emplace_back(trim(take_until(rest, "\n")));
  }
  if (names.empty())
    user_error({.where = "data.classes",
                .problem = concat(where, " has no class names"),
                .expected = "one class name per line"});
  if (static_cast<int64_t>(names.size()) > kMaxClasses) {
    user_error({.where = "data.classes",
                .problem = concat(where, " has ", names.size(), " class names"),
                .expected = concat("at most ", kMaxClasses)});
  }
  std::vector<std::string> sorted = names;
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end()) {
    user_error({.where = "data.classes",
                .problem = concat(where, " has the class name '", escape(*twice), "' twice"),
                .expected = "each name once"});
  }
  return names;
}

std::optional<fs::path> find_class_file(const SourceOptions& options, const fs::path& folder) {
  if (!options.classes.empty()) return fs::absolute(options.classes);
  std::error_code ignored;
  const fs::path beside = folder / "classes.txt";
  if (fs::is_regular_file(beside, ignored)) return beside;
  return std::nullopt;
}

LabelReader::LabelReader(std::vector<std::string> classes, int64_t offset)
    : classes_(std::move(classes)), offset_(offset), by_name_(classes_.size()) {
  std::iota(by_name_.begin(), by_name_.end(), 0);
  std::sort(by_name_.begin(), by_name_.end(), [&](size_t a, size_t b) { return classes_[a] < classes_[b]; });
}

std::optional<int64_t> LabelReader::read(int64_t number, std::string& problem) const {
  const int64_t classes = classes_.empty() ? kMaxClasses : static_cast<int64_t>(classes_.size());
  int64_t label = 0;
  if (!__builtin_add_overflow(number, offset_, &label) && label >= 0 && label < classes) return label;
  problem = concat("a label from ", -offset_, " to ", classes - 1 - offset_, ": found ", number);
  return std::nullopt;
}

std::optional<int64_t> LabelReader::read(std::string_view text, std::string& problem) const {
  text = trim(text);
  if (const auto number = parse_number<int64_t>(text)) return read(*number, problem);
  const auto found = std::lower_bound(by_name_.begin(), by_name_.end(), text,
                                      [&](size_t i, std::string_view name) { return classes_[i] < name; });
  if (found != by_name_.end() && classes_[*found] == text) return static_cast<int64_t>(*found);
  problem = concat("a label, a number", classes_.empty() ? "" : " or the name of a class", ": found '",
                   escape(text.substr(0, 40)), "'");
  return std::nullopt;
}

}  // namespace tessera::data
