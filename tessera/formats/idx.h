// SPDX-License-Identifier: Apache-2.0
// The idx format of the MNIST family: magic, sizes, bytes. Pure function, safe from any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tessera::formats {

/// An array of unsigned bytes in row-major order.
struct Idx {
  std::vector<int64_t> dims;
  std::string file;  // the bytes of the file, header included
  size_t data_offset = 0;

  std::span<const uint8_t> values() const {
    return {reinterpret_cast<const uint8_t*>(file.data()) + data_offset, file.size() - data_offset};
  }
};

/// Reads an unpacked idx file: two zero bytes, the type (only 0x08, unsigned bytes), the number of
/// dimensions (1 to 4), their sizes as big-endian u32, then exactly as many bytes as the sizes say.
/// `name` is for messages. Errors: UserError that names the file and what was found.
Idx parse_idx(std::string bytes, const std::string& name);

}  // namespace tessera::formats
