// SPDX-License-Identifier: Apache-2.0
// Counts the files and members that a source does not use, so that it can name them. Belongs to one thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace tessera::data {

/// Hidden files (".DS_Store", "._1.jpg") and all inside of Finder's "__MACOSX" folder. They are skipped
/// without a word in folders, zip and tar files alike.
bool is_hidden(std::string_view path);

/// The ending of a file's name with its dot, "" where there is none: ".jpg" of "a/0_v1.5.jpg".
std::string_view ending_of(std::string_view path);

class LeftOut {
 public:
  /// `kind`: an ending such as ".txt", or "" of a name without one. `path` names the first one in messages.
  void add(std::string_view kind, const std::string& path);
  void add_folder(const std::string& path) { add(kFolder, path); }
  void append(const LeftOut& later);
  int64_t count() const { return count_; }
  /// "left out 3 .txt, 1 folder (the first is a/b.txt)", the most frequent kinds first; "" where there is
  /// nothing.
  std::string text() const;

 private:
  static constexpr std::string_view kFolder = "/";  // no name ends like this
  std::map<std::string, int64_t, std::less<>> kinds_;
  std::string first_;
  int64_t count_ = 0;
};

}  // namespace tessera::data
