// SPDX-License-Identifier: Apache-2.0
// PKWARE's APPNOTE 6.3: 4.3.7 local header, 4.3.12 directory, 4.3.14-16 its end (zip64 and plain), 4.5.3
// extra field of zip64.
#include "tessera/formats/zip_directory.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <unordered_set>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/formats/zip_record.h"

namespace tessera::formats {
namespace {

constexpr uint32_t kLocal = 0x04034b50, kEntry = 0x02014b50, kEnd = 0x06054b50, kEnd64 = 0x06064b50,
                   kLocator64 = 0x07064b50;
constexpr uint64_t kEntryBytes = 46, kEndBytes = 22, kEnd64Bytes = 56, kLocatorBytes = 20;
constexpr uint64_t kMaxComment = 0xFFFF, kMaxMembers = 200'000'000, kMaxDirectory = uint64_t{1} << 34;

[[noreturn]] void broken(const ByteSource& file, const std::string& problem,
                         const std::string& expected = "") {
  user_error({.where = "formats.zip",
              .problem = concat("bad zip archive ", file.path().string(), ": ", problem),
              .expected = expected});
}

// Little-endian numbers of a block of bytes. Requires: the place is inside.
class Block {
 public:
  explicit Block(std::span<const std::byte> bytes) : bytes_(bytes) {}
  uint64_t number(size_t at, size_t width) const {
    uint64_t value = 0;
    for (size_t i = width; i-- > 0;) value = value << 8 | std::to_integer<uint64_t>(bytes_[at + i]);
    return value;
  }
  uint16_t u16(size_t at) const { return static_cast<uint16_t>(number(at, 2)); }
  uint32_t u32(size_t at) const { return static_cast<uint32_t>(number(at, 4)); }
  uint64_t u64(size_t at) const { return number(at, 8); }
  std::string text(size_t at, size_t size) const {
    return {reinterpret_cast<const char*>(bytes_.data()) + at, size};
  }
  size_t size() const { return bytes_.size(); }

 private:
  std::span<const std::byte> bytes_;
};

std::vector<std::byte> read_at(const ByteSource& file, uint64_t offset, uint64_t size) {
  std::vector<std::byte> bytes(size);
  file.read(offset, bytes);
  return bytes;
}

struct Directory {
  uint64_t offset = 0, size = 0, members = 0;
};

// The end of the directory is the last thing in the file but for a comment.
std::optional<uint64_t> find_end(const ByteSource& file) {
  if (file.size() < kEndBytes) return std::nullopt;
  const uint64_t size = std::min(file.size(), kEndBytes + kMaxComment), start = file.size() - size;
  const auto bytes = read_at(file, start, size);
  const Block tail(bytes);
  for (uint64_t at = size - kEndBytes + 1; at-- > 0;) {
    if (tail.u32(at) == kEnd && at + kEndBytes + tail.u16(at + 20) == size) return start + at;
  }
  return std::nullopt;
}

// What the plain end leaves at its largest value stands in the zip64 end, found through the locator before
// it.
std::optional<Directory> read_end64(const ByteSource& file, uint64_t end) {
  if (end < kLocatorBytes) return std::nullopt;
  const auto locator_bytes = read_at(file, end - kLocatorBytes, kLocatorBytes);
  const Block locator(locator_bytes);
  if (locator.u32(0) != kLocator64) return std::nullopt;
  const uint64_t at = locator.u64(8);
  if (at > end - kLocatorBytes || end - kLocatorBytes - at < kEnd64Bytes) {
    broken(file, concat("its zip64 directory end is said to be at byte ", at), concat("a byte before ", end));
  }
  const auto bytes = read_at(file, at, kEnd64Bytes);
  const Block block(bytes);
  if (block.u32(0) != kEnd64) broken(file, concat("it has no zip64 directory end at byte ", at));
  if (locator.u32(4) != 0 || block.u32(16) != 0 || block.u32(20) != 0)
    broken(file, "it has several disks", "one");
  return Directory{block.u64(48), block.u64(40), block.u64(32)};
}

Directory find_directory(const ByteSource& file) {
  const auto end = find_end(file);
  if (!end) broken(file, "it has no zip directory at its end");
  const auto bytes = read_at(file, *end, kEndBytes);
  const Block block(bytes);
  Directory directory{block.u32(16), block.u32(12), block.u16(10)};
  if (const auto wide = read_end64(file, *end)) {
    directory = *wide;
  } else if (block.u16(4) != 0 || block.u16(6) != 0) {
    broken(file, "it has several disks", "one");
  }
  if (directory.offset > *end || directory.size > *end - directory.offset) {
    broken(file, concat("its directory of ", directory.size, " bytes from ", directory.offset,
                        " is not inside the file"));
  }
  if (directory.members > kMaxMembers || directory.size > kMaxDirectory) {
    broken(file,
           concat("it has ", directory.members, " members in a directory of ", directory.size, " bytes"),
           concat("at most ", kMaxMembers, " members"));
  }
  return directory;
}

// Sizes and place that the entry leaves at 0xFFFFFFFF stand in an extra field, in this order.
void read_extra64(const ByteSource& file, const Block& extra, ZipMember& member) {
  std::vector<uint64_t*> wanted;
  for (uint64_t* value : {&member.size, &member.packed_size, &member.header}) {
    if (*value == 0xFFFFFFFF) wanted.push_back(value);
  }
  for (size_t at = 0; !wanted.empty() && at + 4 <= extra.size();) {
    const size_t size = extra.u16(at + 2), body = at + 4;
    if (size > extra.size() - body) break;
    if (extra.u16(at) == kZip64Extra && size >= 8 * wanted.size()) {
      for (size_t i = 0; i < wanted.size(); ++i) *wanted[i] = extra.u64(body + 8 * i);
      return;
    }
    at = body + size;
  }
  if (!wanted.empty()) broken(file, concat(escape(member.name), " has no sizes of zip64"));
}

ZipMember read_entry(const ByteSource& file, const Block& block, size_t& at) {
  if (block.size() - at < kEntryBytes || block.u32(at) != kEntry) {
    broken(file, concat("its directory has no entry at byte ", at));
  }
  const size_t name = block.u16(at + 28), extra = block.u16(at + 30), comment = block.u16(at + 32);
  if (block.size() - at - kEntryBytes < name + extra + comment)
    broken(file, "the last entry of its directory is cut off");
  ZipMember member{.name = block.text(at + kEntryBytes, name),
                   .size = block.u32(at + 24),
                   .packed_size = block.u32(at + 20),
                   .header = block.u32(at + 42),
                   .crc32 = block.u32(at + 16),
                   .method = block.u16(at + 10),
                   .encrypted = (block.u16(at + 8) & 1) != 0};
  const std::string extra_bytes = block.text(at + kEntryBytes + name, extra);
  read_extra64(file, Block(std::as_bytes(std::span(extra_bytes))), member);
  if (member.header > file.size() || member.packed_size > file.size() - member.header) {
    broken(file, concat(escape(member.name), " has ", member.packed_size, " bytes from ", member.header,
                        ", which are not inside the file"));
  }
  at += kEntryBytes + name + extra + comment;
  return member;
}

}  // namespace

bool looks_like_zip(std::span<const std::byte> start) {
  return start.size() >= 4 && Block(start).u32(0) == kLocal;
}

void visit_zip_directory(const ByteSource& file, const std::function<void(ZipMember)>& visit) {
  const Directory directory = find_directory(file);
  const auto bytes = read_at(file, directory.offset, directory.size);
  const Block block(bytes);
  uint64_t count = 0;
  for (size_t at = 0; at < block.size(); ++count) visit(read_entry(file, block, at));
  if (count != directory.members) {
    broken(file, concat("its directory has ", count, " members"), std::to_string(directory.members));
  }
}

std::vector<ZipMember> read_zip_directory(const ByteSource& file) {
  std::vector<ZipMember> members;
  std::unordered_set<std::string> names;
  visit_zip_directory(file, [&](ZipMember member) {
    if (!names.insert(member.name).second)
      broken(file, concat("it has two members named ", escape(member.name)));
    members.push_back(std::move(member));
  });
  return members;
}

}  // namespace tessera::formats
