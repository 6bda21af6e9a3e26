// SPDX-License-Identifier: Apache-2.0
#include "tessera/formats/zip_record.h"

#include <algorithm>

namespace tessera::formats {
namespace {

constexpr uint64_t kMost32 = 0xFFFFFFFF, kMost16 = 0xFFFF;
constexpr uint16_t kVersion = 20, kVersion64 = 45, kNameIsUtf8 = 1 << 11, kUnix = 3 << 8;
constexpr uint16_t kFirstDay = 1 << 5 | 1;  // 1980-01-01, the format's zero

template <typename Integer>
void put(std::string& out, Integer value) {
  for (size_t i = 0; i < sizeof value; ++i) out += static_cast<char>(value >> (8 * i) & 0xFF);
}

uint16_t flags_of(const std::string& name) {
  return std::any_of(name.begin(), name.end(), [](char c) { return (c & 0x80) != 0; }) ? kNameIsUtf8 : 0;
}

/// What a local header and an entry of the directory have in common.
void put_facts(std::string& out, const ZipRecord& member, uint16_t version) {
  const auto size = static_cast<uint32_t>(std::min(member.size, kMost32));
  put(out, version);
  put(out, flags_of(member.name));
  put(out, uint16_t{0});  // stored
  put(out, uint16_t{0});  // time
  put(out, kFirstDay);
  put(out, member.crc32);
  put(out, size);
  put(out, size);
  put(out, static_cast<uint16_t>(member.name.size()));
}

/// Sizes, and in the directory the place, that do not fit their 32 bits.
std::string extra64(const ZipRecord& member, bool with_offset) {
  std::string numbers;
  if (member.size >= kMost32) {
    put(numbers, member.size);
    put(numbers, member.size);
  }
  if (with_offset && member.offset >= kMost32) put(numbers, member.offset);
  if (numbers.empty()) return {};
  std::string out;
  put(out, kZip64Extra);
  put(out, static_cast<uint16_t>(numbers.size()));
  return out + numbers;
}

}  // namespace

std::string zip_local_header(const ZipRecord& member) {
  const std::string extra = extra64(member, /*with_offset=*/false);
  std::string out;
  put(out, uint32_t{0x04034b50});
  put_facts(out, member, extra.empty() ? kVersion : kVersion64);
  put(out, static_cast<uint16_t>(extra.size()));
  return out + member.name + extra;
}

std::string zip_directory_entry(const ZipRecord& member) {
  const std::string extra = extra64(member, /*with_offset=*/true);
  const uint16_t version = extra.empty() ? kVersion : kVersion64;
  std::string out;
  put(out, uint32_t{0x02014b50});
  put(out, static_cast<uint16_t>(kUnix | version));
  put_facts(out, member, version);
  put(out, static_cast<uint16_t>(extra.size()));
  put(out, uint16_t{0});  // comment
  put(out, uint16_t{0});  // disk
  put(out, uint16_t{0});
  put(out, uint32_t{0100644} << 16);  // a plain file that all may read
  put(out, static_cast<uint32_t>(std::min(member.offset, kMost32)));
  return out + member.name + extra;
}

std::string zip_directory_end(uint64_t offset, uint64_t size, uint64_t members) {
  std::string out;
  if (offset >= kMost32 || size >= kMost32 || members >= kMost16) {
    put(out, uint32_t{0x06064b50});
    put(out, uint64_t{44});
    put(out, kVersion64);
    put(out, kVersion64);
    put(out, uint64_t{0});  // disks
    put(out, members);
    put(out, members);
    put(out, size);
    put(out, offset);
    put(out, uint32_t{0x07064b50});
    put(out, uint32_t{0});
    put(out, offset + size);
    put(out, uint32_t{1});
  }
  put(out, uint32_t{0x06054b50});
  put(out, uint32_t{0});
  put(out, static_cast<uint16_t>(std::min(members, kMost16)));
  put(out, static_cast<uint16_t>(std::min(members, kMost16)));
  put(out, static_cast<uint32_t>(std::min(size, kMost32)));
  put(out, static_cast<uint32_t>(std::min(offset, kMost32)));
  put(out, uint16_t{0});
  return out;
}

}  // namespace tessera::formats
