// SPDX-License-Identifier: Apache-2.0
#include "tessera/formats/tar.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

namespace tessera::formats {
namespace {

constexpr uint64_t kTarBlock = 512;
constexpr uint64_t kMaxLongHeader = uint64_t{1}
                                    << 20;  // of a pax or long-name header; honest ones are below 10 KiB
constexpr uint64_t kMaxMember = uint64_t{1} << 62;
using TarBlock = std::array<std::byte, kTarBlock>;

[[noreturn]] void broken(const std::string& archive, uint64_t at, const std::string& problem,
                         const std::string& expected = "") {
  user_error({.where = "formats.tar",
              .problem = concat(problem, " (byte ", at, " of ", archive, ")"),
              .expected = expected});
}

/// A field of characters that ends with a zero or with the field.
std::string_view text(const TarBlock& block, size_t at, size_t width) {
  const std::string_view field(reinterpret_cast<const char*>(block.data()) + at, width);
  return field.substr(0, std::min(field.find('\0'), field.size()));
}

/// Octal digits between blanks, or, with the first bit set, a big-endian number (GNU). Nothing: no number.
std::optional<uint64_t> number(const TarBlock& block, size_t at, size_t width) {
  const auto first = std::to_integer<unsigned>(block[at]);
  uint64_t value = 0;
  if ((first & 0x80U) != 0) {
    if (first != 0x80U) return std::nullopt;  // negative, or beyond 2^88
    for (size_t i = 1; i < width; ++i) {
      if (value >> 54 != 0) return std::nullopt;
      value = value << 8 | std::to_integer<uint64_t>(block[at + i]);
    }
    return value;
  }
  std::string_view digits = text(block, at, width);
  while (digits.starts_with(' ')) digits.remove_prefix(1);
  while (digits.ends_with(' ')) digits.remove_suffix(1);
  const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), value, 8);
  if (!digits.empty() && (parsed.ec != std::errc() || parsed.ptr != digits.data() + digits.size())) {
    return std::nullopt;
  }
  return value;
}

/// The sum of the header's bytes with its own field as blanks; some old writers summed signed bytes.
bool right_checksum(const TarBlock& block) {
  constexpr size_t kAt = 148, kWidth = 8;
  const auto stored = number(block, kAt, kWidth);
  int64_t plain = kWidth * ' ', with_sign = plain;
  for (size_t i = 0; i < kTarBlock; ++i) {
    if (i >= kAt && i < kAt + kWidth) continue;
    plain += std::to_integer<uint8_t>(block[i]);
    with_sign += static_cast<int8_t>(std::to_integer<uint8_t>(block[i]));
  }
  return stored && (static_cast<int64_t>(*stored) == plain || static_cast<int64_t>(*stored) == with_sign);
}

std::string full_name(const TarBlock& block) {
  const std::string_view name = text(block, 0, 100), magic = text(block, 257, 6);
  const std::string_view prefix = magic == "ustar" ? text(block, 345, 155) : "";  // GNU's "ustar  " has none
  return prefix.empty() ? std::string(name) : concat(prefix, "/", name);
}

}  // namespace

/// The value of a key in pax records, "<length> <key>=<value>\n" each; the last one counts. "": none.
std::string TarReader::pax_record(const std::string& records, const std::string& key) const {
  std::string value;
  std::string_view rest = records;
  while (!rest.empty() && rest[0] != '\0') {
    size_t length = 0;
    const auto parsed = std::from_chars(rest.data(), rest.data() + rest.size(), length);
    const auto digits = static_cast<size_t>(parsed.ptr - rest.data());
    if (parsed.ec != std::errc() || length > rest.size() || length < digits + 3 || rest[digits] != ' ' ||
        rest[length - 1] != '\n') {
      broken(archive_, stream_.position(), "the pax records before this byte cannot be read");
    }
    const std::string_view record = rest.substr(digits + 1, length - digits - 2);
    if (record.size() > key.size() && record.starts_with(key) && record[key.size()] == '=') {
      value = record.substr(key.size() + 1);
    }
    rest.remove_prefix(length);
  }
  return value;
}

/// Reads the content of a header that holds a name or pax records; returns its padding.
uint64_t TarReader::long_header(uint64_t size, std::string& content) {
  if (size > kMaxLongHeader) {
    broken(archive_, stream_.position(), concat("a long header has ", size, " bytes"),
           concat("at most ", kMaxLongHeader));
  }
  content = read_text(stream_, size);
  const uint64_t padding = (kTarBlock - size % kTarBlock) % kTarBlock;
  if (content.size() < size || stream_.skip(padding) < padding) {
    broken(archive_, stream_.position(), "the archive is cut off within a long header");
  }
  return padding;
}

// (Longer than 60 lines: every kind of header is a case of one loop.)
std::optional<TarMember> TarReader::next() {
  const uint64_t at_content = stream_.position();
  const uint64_t skipped = stream_.skip(left_);
  if (skipped < left_) {
    const uint64_t wanted = left_;
    broken(archive_, at_content + skipped,
           concat("the archive is cut off within ", escape(member_), ": ", wanted - skipped,
                  " bytes are missing"));
  }
  left_ = 0;
  stream_.skip(padding_);
  padding_ = 0;
  std::string long_name, records;
  while (true) {
    const uint64_t at = stream_.position();
    TarBlock block;
    const size_t got = stream_.read(block);
    if (got == 0 && long_name.empty() && records.empty()) return std::nullopt;
    if (got < kTarBlock)
      broken(archive_, at, concat("the archive is cut off: its last header has ", got, " bytes"),
             concat(kTarBlock, " bytes"));
    if (std::all_of(block.begin(), block.end(), [](std::byte b) { return b == std::byte{0}; })) {
      mark_ = true;
      return std::nullopt;
    }
    if (!right_checksum(block)) broken(archive_, at, "a header has a wrong checksum");
    const auto size = number(block, 124, 12);
    if (!size || *size > kMaxMember) broken(archive_, at, "the size in a header is not a number");
    const char type = static_cast<char>(block[156]);
    if (type == 'L') {
      long_header(*size, long_name);
      long_name.resize(std::min(long_name.find('\0'), long_name.size()));
    } else if (type == 'x') {
      long_header(*size, records);
    } else if (type == 'g' || type == 'K') {  // for all members, or the target of a link: nothing of use here
      std::string ignored;
      long_header(*size, ignored);
    } else {
      TarMember member{full_name(block), 0, *size};
      if (!long_name.empty()) member.name = long_name;
      if (const std::string path = pax_record(records, "path"); !path.empty()) member.name = path;
      if (const std::string text = pax_record(records, "size"); !text.empty()) {
        const auto parsed = std::from_chars(text.data(), text.data() + text.size(), member.size);
        if (parsed.ec != std::errc() || member.size > kMaxMember)
          broken(archive_, at, "the size in the pax records is not a number");
      }
      // Links, devices and folders have no content, whatever their size field says.
      if (type >= '1' && type <= '6') member.size = 0;
      member.name.resize(std::min(member.name.find('\0'), member.name.size()));
      member.offset = stream_.position();
      left_ = member.size;
      padding_ = (kTarBlock - member.size % kTarBlock) % kTarBlock;
      member_ = member.name;
      if ((type == '0' || type == '\0' || type == '7') && !member.name.ends_with('/')) return member;
      const uint64_t passed = stream_.skip(left_);
      if (passed < left_) broken(archive_, at, concat("the archive is cut off within ", escape(member_)));
      left_ = 0;
      stream_.skip(padding_);
      padding_ = 0;
      long_name.clear();
      records.clear();
    }
  }
}

std::string TarReader::content(uint64_t limit) {
  const uint64_t wanted = std::min(left_, limit);
  std::string bytes = read_text(stream_, wanted);
  left_ -= bytes.size();
  if (bytes.size() < wanted) {
    broken(archive_, stream_.position(), concat("the archive is cut off within ", escape(member_)));
  }
  return bytes;
}

}  // namespace tessera::formats
