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
std::vector<std::string> read_class_names(const FileSystem& files, const std::filesystem::path& file);
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
  /// The label, or nothing with the reason in `problem`: "label 12 is out of range: expected 0 to 9".
  /// A number is the label itself, also where a class is named by a number.
  std::optional<int64_t> read(std::string_view text, std::string& problem) const;
  std::optional<int64_t> read(int64_t number, std::string& problem) const;
  /// As read(text), for text that is a name in its data (a folder, a JSON string): a number is the label only
  /// where no class is named by a number.
  std::optional<int64_t> read_name(std::string_view text, std::string& problem) const;
  const std::vector<std::string>& classes() const { return classes_; }

 private:
  std::optional<int64_t> find(std::string_view name) const;
  int64_t count() const;      // of the labels that are allowed
  std::string range() const;  // of the numbers that are allowed: "0 to 9"
  std::string no_label(std::string_view text) const;

  const std::vector<std::string> classes_;
  const int64_t offset_;
  std::vector<size_t> by_name_;  // numbers of classes, sorted by name
  bool named_by_numbers_ = false;
};

/// Warns where all classes are named by numbers whose order is not numeric: labels of folders named 0 to 11
/// are 0, 1, 10, 11, 2, ... That suits a training on these data, and not weights whose outputs are in numeric
/// order (torchvision sorts by bytes, timm by numbers). `where`: "data.open_zip". `from_folders`: the names
/// are those of folders.
void warn_of_numeric_names(const std::vector<std::string>& classes, const char* where, bool from_folders,
                           const SourceOptions& options);

}  // namespace tessera::data
