// SPDX-License-Identifier: Apache-2.0
// Bytes in order: of a file as it is, or unpacked on the way (gzip_stream.h). A stream belongs to one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tessera/base/byte_source.h"

namespace tessera::formats {

class ByteStream {
 public:
  virtual ~ByteStream() = default;
  /// Fills `bytes`, with less only at the end of the stream; returns how many.
  virtual size_t read(std::span<std::byte> bytes) = 0;
  /// Goes on by `count` bytes; returns how many there were.
  virtual uint64_t skip(uint64_t count) = 0;
  /// Bytes read and skipped so far.
  virtual uint64_t position() const = 0;
};

/// A file, read in blocks; what is skipped is not read.
class FileStream : public ByteStream {
 public:
  /// `block`: bytes fetched at once. `file` outlives the stream.
  explicit FileStream(const ByteSource& file, size_t block = 4096) : file_(file), buffer_(block) {}
  size_t read(std::span<std::byte> bytes) override;
  uint64_t skip(uint64_t count) override;
  uint64_t position() const override { return position_; }

 private:
  const ByteSource& file_;
  std::vector<std::byte> buffer_;
  uint64_t buffer_start_ = 0, buffer_size_ = 0;  // what the buffer holds of the file
  uint64_t position_ = 0;
};

/// The next `count` bytes, or as many as there are.
std::string read_text(ByteStream& stream, uint64_t count);

}  // namespace tessera::formats
