// SPDX-License-Identifier: Apache-2.0
// A stream over text, for tests and fuzz targets.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>

#include "tessera/formats/byte_stream.h"

namespace tessera::formats {

class TextStream : public ByteStream {
 public:
  explicit TextStream(std::string text) : text_(std::move(text)) {}
  size_t read(std::span<std::byte> bytes) override {
    const size_t count = std::min(bytes.size(), text_.size() - at_);
    std::memcpy(bytes.data(), text_.data() + at_, count);
    at_ += count;
    return count;
  }
  uint64_t skip(uint64_t count) override {
    count = std::min<uint64_t>(count, text_.size() - at_);
    at_ += count;
    return count;
  }
  uint64_t position() const override { return at_; }

 private:
  std::string text_;
  size_t at_ = 0;
};

}  // namespace tessera::formats
