// SPDX-License-Identifier: Apache-2.0
// The members of a tar archive in order: POSIX ustar and pax, GNU (long names, sizes above 8 GiB), old V7.
// A reader belongs to one thread. Format: POSIX.1-2017, pax, "ustar Interchange Format"; GNU tar manual,
// "Basic Tar Format".
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tessera/formats/byte_stream.h"

namespace tessera::formats {

struct TarMember {
  std::string name;     // any bytes but zero
  uint64_t offset = 0;  // of its content in the (unpacked) archive
  uint64_t size = 0;
};

class TarReader {
 public:
  /// `archive` names it in messages.
  TarReader(ByteStream& stream, std::string archive) : stream_(stream), archive_(std::move(archive)) {}

  /// The next regular file; folders, links and the like are passed over. Nothing at the end of the archive.
  /// Errors: UserError that names the archive, the byte and what is wrong: cut off, a header that is none.
  /// After one there is nothing more to be had.
  std::optional<TarMember> next();

  /// The content of the member that next() gave, once, at most `limit` bytes of it.
  std::string content(uint64_t limit);

  /// The content of the member given last is whole: what next() threw concerns what comes after it.
  bool last_is_whole() const { return left_ == 0; }
  /// The archive ended with its mark, not just with the file.
  bool ended_with_mark() const { return mark_; }

 private:
  std::string pax_record(const std::string& records, const std::string& key) const;
  uint64_t long_header(uint64_t size, std::string& content);

  ByteStream& stream_;
  std::string archive_, member_;
  uint64_t left_ = 0;     // bytes of the member that are still to come
  uint64_t padding_ = 0;  // after them, up to the next block
  bool mark_ = false;
};

}  // namespace tessera::formats
