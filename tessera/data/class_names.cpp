// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/class_names.h"

#include <algorithm>
#include <numeric>

#include "tessera/base/error.h"
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

std::vector<std::string> read_class_names(const FileSystem& files, const fs::path& file) {
  return parse_class_names(files.read_whole(file), file.string());
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
  const fs::path beside = folder / "classes.txt";
  if (options.files->is_file(beside)) return beside;
  return std::nullopt;
}

LabelReader::LabelReader(std::vector<std::string> classes, int64_t offset)
    : classes_(std::move(classes)), offset_(offset), by_name_(classes_.size()) {
  std::iota(by_name_.begin(), by_name_.end(), 0);
  std::sort(by_name_.begin(), by_name_.end(), [&](size_t a, size_t b) { return classes_[a] < classes_[b]; });
  named_by_numbers_ = std::ranges::any_of(
      classes_, [](const std::string& name) { return parse_number<int64_t>(name).has_value(); });
}

std::optional<int64_t> LabelReader::find(std::string_view name) const {
  const auto found = std::lower_bound(by_name_.begin(), by_name_.end(), name,
                                      [&](size_t i, std::string_view each) { return classes_[i] < each; });
  if (found == by_name_.end() || classes_[*found] != name) return std::nullopt;
  return static_cast<int64_t>(*found);
}

int64_t LabelReader::count() const {
  return classes_.empty() ? kMaxClasses : static_cast<int64_t>(classes_.size());
}

std::string LabelReader::range() const { return concat(-offset_, " to ", count() - 1 - offset_); }

std::string LabelReader::no_label(std::string_view text) const {
  return concat("label '", escape(text.substr(0, 40)), "' is ",
                classes_.empty() ? "not a number: expected "
                                 : "neither the name of a class nor a number: expected a class name or ",
                range());
}

std::optional<int64_t> LabelReader::read(int64_t number, std::string& problem) const {
  int64_t label = 0;
  if (!__builtin_add_overflow(number, offset_, &label) && label >= 0 && label < count()) return label;
  problem = concat("label ", number, " is out of range: expected ", range());
  return std::nullopt;
}

std::optional<int64_t> LabelReader::read(std::string_view text, std::string& problem) const {
  text = trim(text);
  if (const auto number = parse_number<int64_t>(text)) return read(*number, problem);
  auto label = find(text);
  if (!label) problem = no_label(text);
  return label;
}

std::optional<int64_t> LabelReader::read_name(std::string_view text, std::string& problem) const {
  if (const auto label = find(text)) return label;
  if (!named_by_numbers_) return read(text, problem);
  const auto label = find(trim(text));
  if (!label) problem = concat("label '", escape(trim(text).substr(0, 40)), "' is not the name of a class");
  return label;
}

void warn_of_numeric_names(const std::vector<std::string>& classes, const char* where, bool from_folders,
                           const SourceOptions& options) {
  if (!options.warn) return;
  std::vector<int64_t> numbers;
  for (const std::string& name : classes) {
    const auto number = parse_number<int64_t>(name);
    if (!number) return;
    numbers.push_back(*number);
  }
  std::vector<int64_t> sorted = numbers;
  std::ranges::sort(sorted);
  const auto wrong = std::ranges::mismatch(numbers, sorted).in1;
  if (wrong == numbers.end()) return;
  const auto label = static_cast<size_t>(wrong - numbers.begin());
  const char* by =
      std::ranges::is_sorted(classes) ? "are sorted by bytes, not by number" : "are not in numeric order";
  options.warn(concat("[", where, "] class ", from_folders ? "folders " : "names ", by, ": ",
                      from_folders ? "folder" : "class", " '", classes[label], "' has label ", label,
                      " (where numbers are labels, pad them with zeros: 000, 001, ...)"));
}

}  // namespace tessera::data
