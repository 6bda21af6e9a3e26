// SPDX-License-Identifier: Apache-2.0
// What samples are called in the forms they are written in. Safe from any number of threads.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/data/source.h"

namespace tessera::prepare {

/// A folder's name for each class: the class's own name where that is a clean file name and the list is in
/// byte order, in which folders are read back; else the label and the name, "0007_7".
std::vector<std::string> class_folders(const std::vector<std::string>& classes);

/// Names made of the source's own: "train/dress/0001.jpg" is key "0001" and path "dress/0001.jpg". Where
/// keys are not unique or too long, "dress_0001", else the index in the source, "00000017".
class Naming {
 public:
  /// Reads all names once. `source` must outlive this.
  explicit Naming(const data::Source& source);
  std::string key(int64_t index) const;
  /// `ending` ("jpg") is for names that do not end as an image file's.
  std::string path(int64_t index, std::string_view ending) const;

 private:
  enum class Keys { kStem, kClassAndStem, kNumber };
  std::string key_of(Keys keys, int64_t index) const;
  std::string file_of(int64_t index) const;
  std::string folder_of(int64_t index) const;
  bool unique(Keys keys) const;

  const data::Source& source_;
  std::vector<std::string> folders_;
  Keys keys_ = Keys::kStem;
  bool numbered_paths_ = false;
};

}  // namespace tessera::prepare
