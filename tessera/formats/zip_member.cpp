// SPDX-License-Identifier: Apache-2.0
// The content of a member: PKWARE's APPNOTE 6.3, 4.3.7 (local header) and 4.4.5 (methods).
#include <libdeflate.h>

#include <algorithm>
#include <memory>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/formats/zip_directory.h"

namespace tessera::formats {
namespace {

constexpr uint64_t kLocalHeader = 30, kMaxBytes = uint64_t{1} << 30;
constexpr uint64_t kLargestRatio = 1032, kDeflateSlack = 64;

[[noreturn]] void broken(const ByteSource& file, const ZipMember& member, const std::string& problem,
                         const std::string& expected = "") {
  user_error({.where = "formats.zip",
              .problem = concat(escape(member.name), " in ", file.path().string(), ' ', problem),
              .expected = expected});
}

uint64_t u16(const std::string& bytes, size_t at) {
  return static_cast<uint8_t>(bytes[at]) | uint64_t{static_cast<uint8_t>(bytes[at + 1])} << 8;
}

void check(const ByteSource& file, const ZipMember& member) {
  if (member.encrypted) broken(file, member, "is encrypted");
  if (member.method != kZipStored && member.method != kZipDeflated) {
    broken(file, member, concat("is compressed by method ", member.method), "stored or deflated members");
  }
  if (member.size > kMaxBytes) broken(file, member, concat("has ", member.size, " bytes"), "at most 1 GiB");
  const bool possible = member.method == kZipStored
                            ? member.size == member.packed_size
                            : member.size <= member.packed_size * kLargestRatio + kDeflateSlack;
  if (member.packed_size > kMaxBytes || !possible) {
    broken(file, member,
           concat("has contradicting sizes: ", member.packed_size, " bytes packed and ", member.size,
                  " unpacked"));
  }
}

/// Where the bytes begin, packed or not.
uint64_t content_offset(const ByteSource& file, const ZipMember& member) {
  if (member.header > file.size() || file.size() - member.header < kLocalHeader + member.packed_size) {
    broken(file, member,
           concat("is not inside the file: it has ", member.packed_size, " bytes from ", member.header));
  }
  const uint64_t room = file.size() - member.header;
  std::string header(kLocalHeader + member.name.size(), '\0');
  if (room < header.size()) broken(file, member, "is cut off");
  file.read(member.header, std::as_writable_bytes(std::span(header)));
  if (!header.starts_with("PK\3\4") || u16(header, 26) != member.name.size() ||
      !header.ends_with(member.name)) {
    broken(file, member, concat("has no header at byte ", member.header));
  }
  const uint64_t start = header.size() + u16(header, 28);  // after the extra field
  if (start > room || room - start < member.packed_size) {
    broken(file, member, "is cut off");
  }
  return member.header + start;
}

}  // namespace

uint64_t stored_member_offset(const ByteSource& file, const ZipMember& member) {
  if (member.encrypted || member.method != kZipStored || member.size != member.packed_size) {
    broken(file, member, concat("is ", member.encrypted ? "encrypted" : "compressed"),
           "a member that is stored as it is");
  }
  return content_offset(file, member);
}

std::string read_zip_member(const ByteSource& file, const ZipMember& member) {
  check(file, member);
  const uint64_t offset = content_offset(file, member);
  std::string content(member.packed_size, '\0');
  file.read(offset, std::as_writable_bytes(std::span(content)));
  if (member.method == kZipDeflated) {
    struct Free {
      void operator()(libdeflate_decompressor* d) const { libdeflate_free_decompressor(d); }
    };
    thread_local const std::unique_ptr<libdeflate_decompressor, Free> inflater(
        libdeflate_alloc_decompressor());
    std::string unpacked(member.size, '\0');
    const auto code = libdeflate_deflate_decompress(inflater.get(), content.data(), content.size(),
                                                    unpacked.data(), unpacked.size(), nullptr);
    if (code != LIBDEFLATE_SUCCESS)
      broken(file, member, "has damaged data", concat(member.size, " bytes of deflated data"));
    content = std::move(unpacked);
  }
  const uint32_t crc = libdeflate_crc32(0, content.data(), content.size());
  if (crc != member.crc32) broken(file, member, concat("has the CRC ", crc), std::to_string(member.crc32));
  return content;
}

}  // namespace tessera::formats
