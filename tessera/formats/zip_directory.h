// The directory of a zip archive: names, places and sizes of its members, zip64 included. Reads no member.
// Pure but for the file; safe from any number of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tessera/base/file.h"

namespace tessera::formats {

struct ZipMember {
  std::string name;
  uint64_t size = 0;         // unpacked
  uint64_t packed_size = 0;  // in the file
  uint64_t header = 0;       // byte of the file where its local header begins
  uint32_t crc32 = 0;        // of the unpacked bytes
  uint16_t method = 0;       // 0: stored, 8: deflate
  bool encrypted = false;
};

/// True where the bytes begin like a zip archive with at least one member.
bool looks_like_zip(std::span<const std::byte> start);

/// The members in the directory's order. Errors: UserError that names the file when it is no zip archive, is
/// cut off, spans several disks, has more than 4 million members, two of one name, or a place outside of the
/// file.
std::vector<ZipMember> read_zip_directory(const FileReader& file);

/// Byte of the file where a stored member's bytes begin. Errors: UserError when it is packed or encrypted,
/// its local header is not where the directory says or names another member, or its bytes leave the file.
uint64_t stored_member_offset(const FileReader& file, const ZipMember& member);

}  // namespace tessera::formats
