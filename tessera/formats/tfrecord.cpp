#include "tessera/formats/tfrecord.h"

#include <array>

#include "tessera/base/error.h"

namespace tessera::formats {
namespace {

constexpr uint64_t kHeader = 12, kFooter = 4;  // length and its CRC; the payload's CRC

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1U) != 0 ? 0x82F63B78U : 0U);
    table[i] = value;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kTable = make_table();

template <typename Integer>
void append_little_endian(std::string& out, Integer value) {
  for (size_t i = 0; i < sizeof value; ++i) out += static_cast<char>((value >> (8 * i)) & 0xFFU);
}

template <typename Integer>
Integer read_little_endian(const std::byte* bytes) {
  Integer value = 0;
  for (size_t i = 0; i < sizeof value; ++i) value |= static_cast<Integer>(bytes[i]) << (8 * i);
  return value;
}

}  // namespace

uint32_t crc32c(std::span<const std::byte> bytes) {
  uint32_t crc = 0xFFFFFFFFU;
  for (const std::byte byte : bytes) {
    crc = (crc >> 8) ^ kTable[(crc ^ static_cast<uint32_t>(byte)) & 0xFFU];
  }
  return ~crc;
}

uint32_t masked_crc32c(std::span<const std::byte> bytes) {
  const uint32_t crc = crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8U;
}

std::string tfrecord(std::string_view payload) {
  std::string out;
  out.reserve(payload.size() + kHeader + kFooter);
  append_little_endian(out, static_cast<uint64_t>(payload.size()));
  append_little_endian(out, masked_crc32c(std::as_bytes(std::span(out))));
  out += payload;
  append_little_endian(out, masked_crc32c(std::as_bytes(std::span(payload))));
  return out;
}

std::optional<std::string> TfRecordReader::next() {
  const uint64_t left = file_.size() - offset_;
  if (left == 0) return std::nullopt;
  const auto broken = [&](const std::string& expected, uint64_t found) {
    user_error("formats.tfrecord", expected, ": found ", found, " (offset ", offset_, " of ",
               file_.path().string(), "; the file is cut off or damaged)");
  };
  if (left < kHeader + kFooter) broken("at least 16 bytes of a record", left);
  std::array<std::byte, kHeader> header{};
  file_.read(offset_, header);
  if (read_little_endian<uint32_t>(&header[8]) != masked_crc32c(std::span(header).first(8))) {
    broken("a length with the right checksum", read_little_endian<uint64_t>(header.data()));
  }
  const auto length = read_little_endian<uint64_t>(header.data());
  if (length > left - kHeader - kFooter)
    broken(concat("a record of ", length, " bytes"), left - kHeader - kFooter);
  std::string payload(length, '\0');
  file_.read(offset_ + kHeader, std::as_writable_bytes(std::span(payload)));
  std::array<std::byte, kFooter> footer{};
  file_.read(offset_ + kHeader + length, footer);
  const uint32_t stored = read_little_endian<uint32_t>(footer.data());
  const uint32_t computed = masked_crc32c(std::as_bytes(std::span(payload)));
  if (stored != computed) broken(concat("a record with checksum ", stored), computed);
  offset_ += kHeader + length + kFooter;
  return payload;
}

}  // namespace tessera::formats
