// SPDX-License-Identifier: Apache-2.0
// Where the samples of a source lie: names in one block of text, numbers in columns; what an index file
// holds. index_builder.cpp writes them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/file.h"
#include "tessera/formats/gzip_stream.h"

namespace tessera::data {

/// One sample, as builders give it and the index gives it back.
struct IndexedSample {
  std::string_view name;  // within its file: "dress/1.jpg", "0001.jpg"; any bytes but zero
  int64_t label = -1;     // below the number of classes; -1: none, `problem` says why
  uint32_t file = 0;      // number in files()
  uint64_t offset = 0;    // byte of the (unpacked) file
  uint64_t size = 0;      // bytes from there
  uint64_t unpacked = 0;  // zip: bytes of the content
  uint32_t crc32 = 0;     // zip: of the content
  uint8_t method = 0;     // zip
};

/// A point of a gzip file where unpacking can start, and where in the block of windows its window lies.
struct IndexedPoint {
  formats::RestartPoint point;
  uint64_t window_at = 0;
  uint64_t window_hash = 0;  // XXH3
  uint32_t file = 0;
  uint32_t reserved = 0;
};

/// The windows of restart points: in an index file behind its columns, or in memory.
struct IndexWindows {
  std::shared_ptr<const FileReader> file;
  uint64_t start = 0;  // byte of `file`
  std::string text;    // without a file
};

/// Immutable; any number of threads.
class SampleIndex {
 public:
  /// Reads the bytes of an index. Nothing: they are no index, damaged, or of another version.
  static std::optional<SampleIndex> parse(std::string bytes, IndexWindows windows);
  /// Of an index file. Nothing: there is none, it is damaged, or it describes something else than `identity`.
  static std::optional<SampleIndex> read(const std::filesystem::path& path, const std::string& identity);

  const std::string& identity() const { return identity_; }
  int64_t size() const { return static_cast<int64_t>(labels_.size()); }
  int64_t label(int64_t i) const { return labels_[static_cast<size_t>(i)]; }
  std::string_view name(int64_t i) const;
  IndexedSample sample(int64_t i) const;
  /// What is wrong with a sample; null: nothing that is known.
  const std::string* problem(int64_t i) const;
  const std::vector<std::string>& files() const { return files_; }
  const std::vector<std::string>& classes() const { return classes_; }
  const std::vector<std::string>& notes() const { return notes_; }

  /// The last restart point of a file at or before a byte of its content, with its window.
  /// Errors: UserError when the window on disk is damaged.
  std::pair<formats::RestartPoint, std::string> restart_point(uint32_t file, uint64_t unpacked) const;

 private:
  bool read_sections(std::string_view body);
  bool consistent() const;

  std::shared_ptr<const std::string> bytes_;  // what the columns point into
  std::string identity_;
  std::string_view names_;
  std::span<const uint64_t> name_ends_, offsets_, sizes_, unpacked_, broken_;
  std::span<const int32_t> labels_;
  std::span<const uint32_t> file_numbers_, crcs_;
  std::span<const uint8_t> methods_;
  std::span<const IndexedPoint> points_;
  uint64_t windows_size_ = 0;
  std::vector<std::string> files_, classes_, notes_, problems_;
  IndexWindows windows_;
};

}  // namespace tessera::data
