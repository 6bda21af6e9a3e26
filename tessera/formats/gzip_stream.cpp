// SPDX-License-Identifier: Apache-2.0
#include "tessera/formats/gzip_stream.h"

#include <zlib.h>

#include <algorithm>
#include <array>
#include <vector>

#include "tessera/base/error.h"

namespace tessera::formats {
namespace {

constexpr size_t kInput = 64 * 1024;
constexpr int kRaw = -15, kGzip = 15 + 16;  // zlib's windowBits: bare deflate; with header and CRC
constexpr uint64_t kTrailer = 8;            // CRC and size of a member

[[noreturn]] void broken(const ByteSource& file, uint64_t unpacked, const std::string& what) {
  user_error(
      {.where = "formats.gzip",
       .problem = concat(file.path().string(), " is damaged after ", unpacked, " unpacked bytes: ", what),
       .hint = "fetch it again"});
}

/// zlib over a file from any byte of it.
class StreamInflater {
 public:
  StreamInflater(const ByteSource& file, uint64_t start, int window_bits)
      : file_(file), next_(start), input_(kInput) {
    TESSERA_CHECK_EQ(inflateInit2(&stream_, window_bits), Z_OK);
  }
  ~StreamInflater() { inflateEnd(&stream_); }
  StreamInflater(const StreamInflater&) = delete;
  StreamInflater& operator=(const StreamInflater&) = delete;

  /// One call of inflate into `bytes`; counts what it wrote. Stops at the end of a block with `flush` =
  /// Z_BLOCK.
  int step(std::span<std::byte> bytes, int flush, size_t& written) {
    refill();
    stream_.next_out = reinterpret_cast<Bytef*>(bytes.data());
    stream_.avail_out = static_cast<uInt>(std::min<size_t>(bytes.size(), 1U << 30));
    const uInt room = stream_.avail_out;
    const int code = inflate(&stream_, flush);
    written = room - stream_.avail_out;
    return code;
  }
  /// The first byte of the file that zlib has not taken.
  uint64_t consumed() const { return next_ - stream_.avail_in; }
  bool at_end_of_file() const { return consumed() >= file_.size(); }
  void restart(int window_bits) { TESSERA_CHECK_EQ(inflateReset2(&stream_, window_bits), Z_OK); }
  void skip_input(uint64_t count) {
    next_ = consumed() + count;
    stream_.avail_in = 0;
  }
  z_stream& zlib() { return stream_; }
  const char* message() const { return stream_.msg == nullptr ? "damaged data" : stream_.msg; }

 private:
  void refill() {
    if (stream_.avail_in > 0 || next_ >= file_.size()) return;
    const auto count = std::min<uint64_t>(kInput, file_.size() - next_);
    file_.read(next_, std::span(input_).first(count));
    next_ += count;
    stream_.next_in = reinterpret_cast<Bytef*>(input_.data());
    stream_.avail_in = static_cast<uInt>(count);
  }

  const ByteSource& file_;
  uint64_t next_;  // byte of the file after those in the input buffer
  std::vector<std::byte> input_;
  z_stream stream_ = {};
};

/// True where another member begins; false at the end of the file or at zero padding, which some writers add.
bool another_member(const ByteSource& file, uint64_t at, uint64_t unpacked) {
  if (at >= file.size()) return false;
  std::array<std::byte, 2> start{};
  file.read(at, std::span(start).first(std::min<uint64_t>(2, file.size() - at)));
  if (start[0] == std::byte{0x1f} && start[1] == std::byte{0x8b}) return true;
  if (start[0] != std::byte{0})
    broken(file, unpacked, concat(file.size() - at, " other bytes follow its end"));
  return false;
}

}  // namespace

bool is_gzip_file(const ByteSource& file) {
  if (file.size() < 2) return false;
  std::array<std::byte, 2> start{};
  file.read(0, start);
  return start[0] == std::byte{0x1f} && start[1] == std::byte{0x8b};
}

struct GzipStream::State {
  State(const ByteSource& file, uint64_t span, OnPoint on_point)
      : file(file), span(span), on_point(std::move(on_point)), inflater(file, 0, kGzip) {
    point();
  }

  /// Notes that unpacking can start here: at the start of a member (no window), or at the end of a block.
  void point() {
    last_point = position;
    if (!on_point) return;
    RestartPoint here{position, inflater.consumed(), static_cast<uint32_t>(inflater.zlib().data_type & 7), 0};
    std::array<std::byte, kGzipWindow> window;
    if (in_member) {
      uInt size = 0;
      TESSERA_CHECK_EQ(inflateGetDictionary(&inflater.zlib(), reinterpret_cast<Bytef*>(window.data()), &size),
                       Z_OK);
      here.window = size;
    } else {
      here.bits = 0;
    }
    on_point(here, std::span(window).first(here.window));
  }

  void next_member() {
    in_member = false;
    ended = !another_member(file, inflater.consumed(), position);
    if (ended) return;
    inflater.restart(kGzip);
    point();
  }

  const ByteSource& file;
  const uint64_t span;
  const OnPoint on_point;
  StreamInflater inflater;
  uint64_t position = 0, last_point = 0;
  bool in_member = false, ended = false;
};

GzipStream::GzipStream(const ByteSource& file, uint64_t span, OnPoint on_point)
    : state_(std::make_unique<State>(file, span, std::move(on_point))) {}
GzipStream::~GzipStream() = default;
uint64_t GzipStream::position() const { return state_->position; }

size_t GzipStream::read(std::span<std::byte> bytes) {
  State& s = *state_;
  size_t done = 0;
  while (done < bytes.size() && !s.ended) {
    size_t written = 0;
    const int code = s.inflater.step(bytes.subspan(done), Z_BLOCK, written);
    done += written;
    s.position += written;
    if (written > 0) s.in_member = true;
    if (code == Z_STREAM_END) {
      s.next_member();
    } else if (code == Z_BUF_ERROR && s.inflater.at_end_of_file()) {
      broken(s.file, s.position, "it is cut off");
    } else if (code != Z_OK && code != Z_BUF_ERROR) {
      broken(s.file, s.position, s.inflater.message());
    } else if ((s.inflater.zlib().data_type & 0xC0) == 0x80 && s.position - s.last_point >= s.span) {
      s.point();  // after a block that is not the last of its member
    }
  }
  return done;
}

uint64_t GzipStream::skip(uint64_t count) {
  std::vector<std::byte> scratch(std::min<uint64_t>(count, kInput));
  uint64_t done = 0;
  while (done < count) {
    const size_t got = read(std::span(scratch).first(std::min<uint64_t>(scratch.size(), count - done)));
    if (got == 0) break;
    done += got;
  }
  return done;
}

void read_gzip_at(const ByteSource& file, const RestartPoint& point, std::span<const std::byte> window,
                  uint64_t offset, std::span<std::byte> bytes) {
  TESSERA_CHECK(point.unpacked <= offset && point.bits < 8 && window.size() == point.window);
  bool raw = point.window > 0;  // inside of a member, else at its header
  StreamInflater inflater(file, point.packed, raw ? kRaw : kGzip);
  if (raw) {
    if (point.bits > 0) {
      std::array<std::byte, 1> before{};
      file.read(point.packed - 1, before);
      inflatePrime(&inflater.zlib(), static_cast<int>(point.bits),
                   std::to_integer<int>(before[0]) >> (8 - point.bits));
    }
    inflateSetDictionary(&inflater.zlib(), reinterpret_cast<const Bytef*>(window.data()),
                         static_cast<uInt>(window.size()));
  }
  uint64_t position = point.unpacked;
  size_t done = 0;
  std::vector<std::byte> scratch(kInput);
  while (done < bytes.size()) {
    const bool before = position < offset;
    const auto target = before ? std::span(scratch).first(std::min<uint64_t>(kInput, offset - position))
                               : bytes.subspan(done);
    size_t written = 0;
    const int code = inflater.step(target, Z_NO_FLUSH, written);
    position += written;
    if (!before) done += written;
    if (code == Z_STREAM_END) {
      if (raw) inflater.skip_input(kTrailer);
      raw = false;
      if (done < bytes.size() && !another_member(file, inflater.consumed(), position)) {
        broken(file, position, "it ends");
      }
      inflater.restart(kGzip);
    } else if (code == Z_BUF_ERROR && inflater.at_end_of_file()) {
      broken(file, position, "it is cut off");
    } else if (code != Z_OK && code != Z_BUF_ERROR) {
      broken(file, position, inflater.message());
    }
  }
}

}  // namespace tessera::formats
