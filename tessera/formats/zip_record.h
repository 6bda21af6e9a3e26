// SPDX-License-Identifier: Apache-2.0
// What a zip archive of stored members is made of beside their bytes, zip64 where it is needed. Pure
// functions. Source: PKWARE's APPNOTE 6.3: 4.3.7 local header, 4.3.12 directory, 4.3.14-16 its end, 4.5.3
// extra field.
#pragma once

#include <cstdint>
#include <string>

namespace tessera::formats {

inline constexpr uint16_t kZip64Extra = 1;  // id of the extra field with sizes and offsets of 64 bits

/// A stored member. Its name has at most 65,535 bytes.
struct ZipRecord {
  std::string name;
  uint32_t crc32 = 0;
  uint64_t size = 0;
  uint64_t offset = 0;  // byte of the archive where its local header begins
};

/// What stands before the member's bytes.
std::string zip_local_header(const ZipRecord& member);
/// Its entry in the directory.
std::string zip_directory_entry(const ZipRecord& member);
/// What stands after a directory of `size` bytes that begins at `offset`.
std::string zip_directory_end(uint64_t offset, uint64_t size, uint64_t members);

}  // namespace tessera::formats
