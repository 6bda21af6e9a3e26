// SPDX-License-Identifier: Apache-2.0
// A gzip file as a stream, and from any place in it: while it is unpacked once, restart points are noted at
// the ends of deflate blocks, each with the 32 KiB of output before it; later the inflater starts at the
// point before the place that is wanted. The method of zlib's example zran.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "tessera/base/byte_source.h"
#include "tessera/formats/byte_stream.h"

namespace tessera::formats {

inline constexpr size_t kGzipWindow = 32768;

/// Where unpacking can start without what comes before.
struct RestartPoint {
  uint64_t unpacked = 0;  // byte of the content
  uint64_t packed = 0;    // first byte of the file that is not consumed
  uint32_t bits = 0;      // of the byte before it that still belong to what follows
  uint32_t window = 0;    // bytes of output before it that are needed, at most kGzipWindow
};

bool is_gzip_file(const ByteSource& file);

/// Unpacks a file with one or several members and checks the CRC of each. Belongs to one thread.
/// Errors of read and skip: UserError that names the file when it is cut off or damaged.
class GzipStream : public ByteStream {
 public:
  using OnPoint = std::function<void(const RestartPoint&, std::span<const std::byte> window)>;
  /// `file` outlives the stream. `on_point` (may be empty) is told of a point at the start of each member and
  /// then about every `span` bytes of content.
  GzipStream(const ByteSource& file, uint64_t span, OnPoint on_point);
  ~GzipStream() override;
  size_t read(std::span<std::byte> bytes) override;
  uint64_t skip(uint64_t count) override;
  uint64_t position() const override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Content bytes [offset, offset + bytes.size()) of a gzip file, from a point at or before `offset` and its
/// window. The members' CRCs are not checked: they cover what is not read. Errors: UserError that names the
/// file.
void read_gzip_at(const ByteSource& file, const RestartPoint& point, std::span<const std::byte> window,
                  uint64_t offset, std::span<std::byte> bytes);

}  // namespace tessera::formats
