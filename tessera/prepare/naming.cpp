// SPDX-License-Identifier: Apache-2.0
#include "tessera/prepare/naming.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <functional>
#include <set>

#include "tessera/base/error.h"
#include "tessera/data/open_source.h"

namespace tessera::prepare {
namespace {

constexpr size_t kLongestKey = 90;  // a tar header has 100 bytes for KEY.jpg

std::string number_text(int64_t number, int digits) {
  std::array<char, 32> buffer{};
  std::snprintf(buffer.data(), buffer.size(), "%0*lld", digits, static_cast<long long>(number));
  return buffer.data();
}

/// A name that is one component of a path on any system, and one line of a list. Bytes above 0x7F stay.
std::string clean(std::string_view name) {
  std::string out(name);
  for (char& c : out) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F || c == '/' || c == '\\' || c == ':') c = '_';
  }
  if (out.empty() || out[0] == '.') out.insert(out.begin(), '_');
  return out;
}

/// Length of ".jpg", ".JPEG", ".png" at the end of a name; 0 where it has none.
size_t ending_length(std::string_view name) {
  const size_t dot = name.rfind('.');
  if (dot == std::string_view::npos || dot == 0) return 0;
  return data::is_image_name(name) ? name.size() - dot : 0;
}

bool all_different(std::vector<size_t> hashes) {
  std::sort(hashes.begin(), hashes.end());
  return std::adjacent_find(hashes.begin(), hashes.end()) == hashes.end();
}

}  // namespace

std::vector<std::string> class_folders(const std::vector<std::string>& classes) {
  const bool as_they_are =
      std::adjacent_find(classes.begin(), classes.end(), std::greater_equal<>()) == classes.end() &&
      std::all_of(classes.begin(), classes.end(), [](const auto& name) { return clean(name) == name; });
  if (as_they_are) return classes;
  const int digits = std::max(4, static_cast<int>(std::to_string(classes.size()).size()));
  std::vector<std::string> folders;
  for (size_t i = 0; i < classes.size(); ++i) {
    folders.push_back(concat(number_text(static_cast<int64_t>(i), digits), "_", clean(classes[i])));
  }
  return folders;
}

Naming::Naming(const data::Source& source) : source_(source), folders_(class_folders(source.classes())) {
  if (!unique(Keys::kStem)) keys_ = unique(Keys::kClassAndStem) ? Keys::kClassAndStem : Keys::kNumber;
  std::vector<size_t> paths;
  for (int64_t i = 0; i < source_.size(); ++i) {
    const std::string file = file_of(i);
    paths.push_back(std::hash<std::string>()(
        concat(source_.label(i), '/', file.substr(0, file.size() - ending_length(file)))));
  }
  numbered_paths_ = !all_different(std::move(paths));
}

bool Naming::unique(Keys keys) const {
  std::vector<size_t> hashes;
  for (int64_t i = 0; i < source_.size(); ++i) {
    const std::string key = key_of(keys, i);
    if (key.size() > kLongestKey) return false;
    hashes.push_back(std::hash<std::string>()(key));
  }
  return all_different(std::move(hashes));
}

std::string Naming::file_of(int64_t index) const {
  const std::string name = source_.sample_name(index);
  if (name.ends_with(']')) {  // "train-images-idx3-ubyte.gz[17]": an element of a file
    const size_t bracket = name.rfind('[');
    const std::string digits =
        bracket == std::string::npos ? "" : name.substr(bracket + 1, name.size() - bracket - 2);
    if (!digits.empty() && digits.size() < 18 && std::all_of(digits.begin(), digits.end(), ::isdigit)) {
      return number_text(std::stoll(digits), 8);
    }
  }
  return clean(name.substr(name.find_last_of("/:") + 1));
}

/// A sample without a label is never written; its name only has to be one.
std::string Naming::folder_of(int64_t index) const {
  const int64_t label = source_.label(index);
  return label < 0 ? "" : folders_[static_cast<size_t>(label)];
}

std::string Naming::key_of(Keys keys, int64_t index) const {
  if (keys == Keys::kNumber) return number_text(index, 8);
  std::string stem = file_of(index);
  stem.resize(stem.size() - ending_length(stem));
  if (keys == Keys::kClassAndStem) {
    stem = concat(folder_of(index), "_", stem);
  }
  std::replace(stem.begin(), stem.end(), '.', '_');
  std::replace(stem.begin(), stem.end(), ' ', '_');
  return stem;
}

std::string Naming::key(int64_t index) const { return key_of(keys_, index); }

std::string Naming::path(int64_t index, std::string_view ending) const {
  std::string file = file_of(index);
  if (ending_length(file) == 0) file = concat(file, ".", ending);
  if (numbered_paths_) file = concat(number_text(index, 8), "_", file);
  return concat(folder_of(index), "/", file);
}

}  // namespace tessera::prepare
