// SPDX-License-Identifier: Apache-2.0
// The header of a safetensors file: text to entries and back. Pure functions, safe from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tessera/base/byte_source.h"
#include "tessera/formats/safetensors.h"

namespace tessera::formats {

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // by offset, without holes
  std::map<std::string, std::string> metadata;
  uint64_t buffer_start = 0;  // byte of the file where the buffer begins
};

/// Parses the start of a file (at least length and header) of `file_size` bytes. `where` names the file in
/// errors. Errors: UserError on anything the format forbids.
SafetensorsHeader parse_safetensors_header(std::span<const std::byte> file_start, uint64_t file_size,
                                           const std::string& where = "header");
/// Reads no more than the header.
SafetensorsHeader read_safetensors_header(const ByteSource& file);

/// The bytes before the buffer: length, JSON, spaces up to a multiple of 8. Assigns begin and end of the
/// entries in the given order. Errors: UserError when the header would exceed the format's limit.
std::string safetensors_header_text(std::vector<SafetensorsEntry>& entries,
                                    const std::map<std::string, std::string>& metadata);

/// The order in which the reference writer lays tensors out: dtype from the widest down, then name.
bool safetensors_order(const SafetensorsEntry& a, const SafetensorsEntry& b);

/// Product of the dims; none when one is negative or the product exceeds 63 bits.
std::optional<int64_t> element_count(const std::vector<int64_t>& shape);

}  // namespace tessera::formats
