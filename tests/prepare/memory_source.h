// SPDX-License-Identifier: Apache-2.0
// Sources of a few lines for tests.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/random.h"
#include "tessera/data/source.h"

namespace tessera::prepare {

/// Samples given one by one; one with the content "unreadable" cannot be loaded.
class MemorySource : public data::Source {
 public:
  explicit MemorySource(std::vector<std::string> classes) : classes_(std::move(classes)) {}
  void add(std::string name, int64_t label, std::string file) {
    samples_.push_back({std::move(name), label, std::move(file)});
  }

  int64_t size() const override { return static_cast<int64_t>(samples_.size()); }
  int64_t label(int64_t index) const override { return at(index).label; }
  data::Stored load(int64_t index) const override {
    if (at(index).file == "unreadable")
      user_error({.where = "test.load", .problem = concat("cannot read ", at(index).name)});
    return {at(index).file, {}};
  }
  std::string sample_name(int64_t index) const override { return at(index).name; }
  const std::vector<std::string>& classes() const override { return classes_; }

 private:
  struct Entry {
    std::string name;
    int64_t label = 0;
    std::string file;
  };
  const Entry& at(int64_t index) const { return samples_.at(static_cast<size_t>(index)); }

  std::vector<std::string> classes_;
  std::vector<Entry> samples_;
};

/// Bytes that begin as a JPEG (or PNG) file does and go on at random, `size` in all.
inline std::string image_like(uint64_t seed, size_t size, bool png = false) {
  std::string bytes = png ? std::string("\x89PNG\r\n\x1A\n") : std::string("\xFF\xD8\xFF");
  for (size_t i = bytes.size(); i < size; ++i) bytes += static_cast<char>(random_word(seed, i));
  return bytes;
}

/// `count` samples of three classes, of 100 to 3,000 bytes; every fifth is a PNG.
inline MemorySource small_source(const std::string& split, int64_t count) {
  MemorySource source({"cat", "dog", "eel"});
  for (int64_t i = 0; i < count; ++i) {
    const int64_t label = i * 3 / count;
    const auto seed = static_cast<uint64_t>(i) + (split == "train" ? 0 : 1000);
    source.add(concat(split, "/", source.classes()[static_cast<size_t>(label)], "/", split, "_", i,
                      i % 5 == 0 ? ".png" : ".JPEG"),
               label, image_like(seed, 100 + random_below(seed, 0, 2900), i % 5 == 0));
  }
  return source;
}

/// Every file below `folder` but the journal: relative path to content.
inline std::map<std::string, std::string> files_of(const std::filesystem::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    const std::string name = std::filesystem::relative(entry.path(), folder).string();
    if (entry.is_regular_file() && name != "pack.jsonl") files[name] = read_file(entry.path());
  }
  return files;
}

}  // namespace tessera::prepare
