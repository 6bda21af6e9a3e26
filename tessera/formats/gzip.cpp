// SPDX-License-Identifier: Apache-2.0
#include "tessera/formats/gzip.h"

#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera::formats {
namespace {

constexpr const char* kGunzip = "formats.gunzip";
constexpr uint64_t kPiece = uint64_t{1} << 30;  // zlib counts a call's bytes in 32 bits
constexpr uint64_t kUsualRatio = 16;            // more than this is asked for when it comes
constexpr int kLargestWindow = 15 + 16;         // zlib's windowBits; gzip header

bool is_gzip(std::string_view bytes) { return bytes.starts_with("\x1f\x8b"); }

// The last four bytes hold the size modulo 2^32: a hint. Those of a file that is cut off are anything.
uint64_t size_hint(std::string_view bytes) {
  uint64_t size = 0;
  for (int i = 4; i >= 1; --i)
    size = size << 8 | static_cast<uint8_t>(bytes[bytes.size() - 5 + static_cast<size_t>(i)]);
  return std::min(size, bytes.size() * kUsualRatio);
}

class Inflater {
 public:
  explicit Inflater(std::string_view bytes) : rest_(bytes) {
    TESSERA_CHECK_EQ(inflateInit2(&stream_, kLargestWindow), Z_OK);
  }
  ~Inflater() { inflateEnd(&stream_); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;

  /// One call of zlib from the rest of the input to [out, out + room).
  int step(char* out, uint64_t room, uint64_t* written) {
    const auto in_count = static_cast<uInt>(std::min<uint64_t>(rest_.size(), kPiece));
    const auto out_count = static_cast<uInt>(std::min(room, kPiece));
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(rest_.data()));
    stream_.avail_in = in_count;
    stream_.next_out = reinterpret_cast<Bytef*>(out);
    stream_.avail_out = out_count;
    const int code = inflate(&stream_, Z_NO_FLUSH);
    rest_.remove_prefix(in_count - stream_.avail_in);
    *written = out_count - stream_.avail_out;
    return code;
  }
  void next_member() { inflateReset(&stream_); }
  std::string_view rest() const { return rest_; }
  const char* message() const { return stream_.msg == nullptr ? "damaged data" : stream_.msg; }

 private:
  z_stream stream_ = {};
  std::string_view rest_;
};

}  // namespace

std::string gunzip(std::string bytes, const std::string& name, uint64_t max_bytes) {
  if (!is_gzip(bytes)) return bytes;
  Inflater inflater(bytes);
  std::string out;
  uint64_t size = 0;
  out.resize(std::min(max_bytes, bytes.size() < 18 ? 0 : size_hint(bytes)) + 1);
  while (true) {
    if (size == out.size()) out.resize(std::min(max_bytes + 1, size + size / 2 + 4096));
    uint64_t written = 0;
    const int code = inflater.step(out.data() + size, out.size() - size, &written);
    size += written;
    if (size > max_bytes) {
      user_error({.where = kGunzip,
                  .problem = concat(name, " is too large unpacked"),
                  .expected = concat("at most ", human_bytes(static_cast<double>(max_bytes)))});
    }
    if (code == Z_STREAM_END) {
      const std::string_view rest = inflater.rest();
      if (rest.find_first_not_of('\0') == std::string_view::npos) break;
      if (!is_gzip(rest)) {
        user_error({.where = kGunzip,
                    .problem = concat(name, " has ", rest.size(), " other bytes after its gzip data")});
      }
      inflater.next_member();
    } else if (code == Z_BUF_ERROR && inflater.rest().empty()) {
      user_error({.where = kGunzip,
                  .problem = concat(name, " is cut off: its data end after ",
                                    human_count(static_cast<int64_t>(size)), " unpacked bytes"),
                  .hint = "fetch it again"});
    } else if (code != Z_OK && code != Z_BUF_ERROR) {
      user_error({.where = kGunzip,
                  .problem = concat(name, " is damaged: ", inflater.message(), " after ",
                                    human_count(static_cast<int64_t>(size)), " unpacked bytes"),
                  .hint = "fetch it again"});
    }
  }
  out.resize(size);
  return out;
}

}  // namespace tessera::formats
