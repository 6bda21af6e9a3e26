// SPDX-License-Identifier: Apache-2.0
// The safetensors file format: u64 LE length, JSON header, one contiguous buffer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tessera/base/file.h"

namespace tessera::formats {

struct SafetensorsEntry {
  std::string name;
  std::string dtype;  // "F32", "BF16", "I64", ...
  std::vector<int64_t> shape;
  uint64_t begin = 0, end = 0;  // bytes, relative to the buffer
};

/// Bytes of one element; throws UserError on an unknown dtype.
uint64_t dtype_size(const std::string& dtype);

/// Reads and checks the header (length <= 100 MB, no holes, no overlap, shape x dtype = bytes, no duplicate
/// key). Reading tensors is safe from any number of threads. Errors: UserError that names the file and what
/// is wrong.
class SafetensorsReader {
 public:
  explicit SafetensorsReader(std::unique_ptr<const ByteSource> file);
  /// Of a local file.
  explicit SafetensorsReader(const std::filesystem::path& path)
      : SafetensorsReader(local_files().open(path)) {}
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }  // by offset
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const SafetensorsEntry* find(const std::string& name) const;
  /// Bytes [first, first + out.size()) of the entry.
  void read(const SafetensorsEntry& entry, uint64_t first, std::span<std::byte> out) const;

 private:
  std::unique_ptr<const ByteSource> file_;
  uint64_t buffer_start_ = 0;
  std::vector<SafetensorsEntry> entries_;
  std::map<std::string, size_t> index_;
  std::map<std::string, std::string> metadata_;
};

/// Streams a file: the header first (from entries whose begin/end it assigns in the given order), then the
/// tensors' bytes in that order, in pieces of any size. Nothing larger than a piece is ever held.
class SafetensorsWriter {
 public:
  /// `entries`: name, dtype, shape; begin/end are assigned. `metadata`: string to string.
  SafetensorsWriter(std::filesystem::path path, std::vector<SafetensorsEntry> entries,
                    const std::map<std::string, std::string>& metadata);
  ~SafetensorsWriter();
  /// Appends to the buffer; the order is that of the entries.
  void write(std::span<const std::byte> bytes);
  /// Checks that all bytes came, syncs, closes. Returns the checksum (hex) of the whole file.
  std::string finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera::formats
