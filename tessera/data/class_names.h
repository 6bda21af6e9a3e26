// SPDX-License-Identifier: Apache-2.0
// Labels and the names of classes, for sources whose labels are written down. Pure but for the file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/data/source.h"

namespace tessera::data {

/// A label is below this: more classes than any list of images has, and still little memory.
inline constexpr int64_t kMaxClasses = 1'000'000;

/// The names of a file, one a line, in the order of the labels; blanks at the ends of lines do not count.
/// Errors: UserError when it is empty or names a class twice.
std::vector<std::string> read_class_names(const std::filesystem::path& file);
/// The same from text; `where` names it in messages.
std::vector<std::string> parse_class_names(std::string_view text, const std::string& where);

/// options.classes where given, else `folder`/classes.txt where it is there.
std::optional<std::filesystem::path> find_class_file(const SourceOptions& options,
                                                     const std::filesystem::path& folder);

/// Makes labels of what data say, a number or the name of a class, and knows what is wrong with it.
class LabelReader {
 public:
  /// `classes`: all names, or none: any number below kMaxClasses.
  LabelReader(std::vector<std::string> classes, int64_t offset);
  /// The label, or nothing with the reason in `problem`: "a label below 10: found 12".
  std::optional<int64_t> read(std::string_view text, std::string& problem) const;
  std::optional<int64_t> read(int64_t number, std::string& problem) const;
  const std::vector<std::string>& classes() const { return classes_; }

 private:
  const std::vector<std::string> classes_;
  const int64_t offset_;
  std::vector<size_t> by_name_;  // numbers of classes, sorted by name
};

}  // namespace tessera::data
