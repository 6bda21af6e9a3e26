// SPDX-License-Identifier: Apache-2.0
// TFRecord framing: u64 LE length, masked CRC32C of it, the bytes, masked CRC32C of them. Pure, except for
// the reader, which belongs to one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "tessera/base/file.h"

namespace tessera::formats {

/// CRC-32C (Castagnoli polynomial, reflected), as in iSCSI.
uint32_t crc32c(std::span<const std::byte> bytes);
/// The CRC rotated and offset, so that a CRC over data that holds CRCs stays useful.
uint32_t masked_crc32c(std::span<const std::byte> bytes);

/// `payload` with its frame around it.
std::string tfrecord(std::string_view payload);

inline constexpr uint64_t kRecordHeader = 12, kRecordFooter = 4;  // length and its CRC; the payload's CRC

/// The payload's length from the first kRecordHeader bytes of a frame; nothing where its CRC is wrong.
std::optional<uint64_t> record_length(std::span<const std::byte> header);
/// The payload within a whole frame. `where` names it in messages. Errors: UserError on a wrong CRC or
/// length.
std::span<const std::byte> record_payload(std::span<const std::byte> frame, const std::string& where);

/// Reads the records of a file in order. Errors: UserError that names the file, the offset and what is wrong.
class TfRecordReader {
 public:
  explicit TfRecordReader(const std::filesystem::path& path) : file_(path) {}
  /// The next payload; nothing at the end of the file.
  std::optional<std::string> next();

 private:
  FileReader file_;
  uint64_t offset_ = 0;
};

}  // namespace tessera::formats
