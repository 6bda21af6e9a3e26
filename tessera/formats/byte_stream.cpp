// SPDX-License-Identifier: Apache-2.0
#include "tessera/formats/byte_stream.h"

#include <algorithm>
#include <cstring>

namespace tessera::formats {

size_t FileStream::read(std::span<std::byte> bytes) {
  const auto wanted = std::min<uint64_t>(bytes.size(), file_.size() - position_);
  for (uint64_t done = 0; done < wanted;) {
    const uint64_t in_buffer = position_ - buffer_start_;  // huge where the position lies before the buffer
    if (in_buffer < buffer_size_) {
      const uint64_t count = std::min(wanted - done, buffer_size_ - in_buffer);
      std::memcpy(bytes.data() + done, buffer_.data() + in_buffer, count);
      done += count;
      position_ += count;
      continue;
    }
    buffer_start_ = position_;
    buffer_size_ = std::min<uint64_t>(buffer_.size(), file_.size() - position_);
    try {
      file_.read(buffer_start_, std::span(buffer_).first(buffer_size_));
    } catch (...) {
      buffer_size_ = 0;
      throw;
    }
  }
  return wanted;
}

uint64_t FileStream::skip(uint64_t count) {
  count = std::min(count, file_.size() - position_);
  position_ += count;
  return count;
}

std::string read_text(ByteStream& stream, uint64_t count) {
  constexpr uint64_t kPiece = uint64_t{1} << 20;  // memory follows what is there, not what is claimed
  std::string text;
  while (count > 0) {
    const size_t piece = std::min(count, kPiece), before = text.size();
    text.resize(before + piece);
    const size_t got = stream.read(std::as_writable_bytes(std::span(text).subspan(before)));
    text.resize(before + got);
    if (got < piece) break;
    count -= piece;
  }
  return text;
}

}  // namespace tessera::formats
