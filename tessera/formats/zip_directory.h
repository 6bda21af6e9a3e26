// SPDX-License-Identifier: Apache-2.0
// The directory of a zip archive, zip64 included: names, places and sizes of its members; and the content of
// one. Pure but for the file; safe from any number of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tessera/base/byte_source.h"

namespace tessera::formats {

inline constexpr uint16_t kZipStored = 0, kZipDeflated = 8;

struct ZipMember {
  std::string name;
  uint64_t size = 0;         // unpacked
  uint64_t packed_size = 0;  // in the file
  uint64_t header = 0;       // byte of the file where its local header begins
  uint32_t crc32 = 0;        // of the unpacked bytes
  uint16_t method = kZipStored;
  bool encrypted = false;
};

/// True where the bytes begin like a zip archive with at least one member.
bool looks_like_zip(std::span<const std::byte> start);

/// Calls `visit` with each member in the directory's order. Errors: UserError that names the file when it is
/// no zip archive, is cut off, spans several disks, or has a member outside of the file.
void visit_zip_directory(const ByteSource& file, const std::function<void(ZipMember)>& visit);

/// All members. Errors: the same, and two members of one name.
std::vector<ZipMember> read_zip_directory(const ByteSource& file);

/// Byte of the file where a stored member's bytes begin. Errors: UserError that names archive and member when
/// it is packed or encrypted, its local header is not where the directory says or names another member, or
/// its bytes leave the file.
uint64_t stored_member_offset(const ByteSource& file, const ZipMember& member);

/// The unpacked content of a stored or deflated member, its CRC checked. Errors: UserError that names archive
/// and member when it is encrypted, packed otherwise, above 1 GiB, cut off, damaged, or not where the
/// directory says.
std::string read_zip_member(const ByteSource& file, const ZipMember& member);

}  // namespace tessera::formats
