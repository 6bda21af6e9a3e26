// SPDX-License-Identifier: Apache-2.0
#include "tessera/formats/idx.h"

#include "tessera/base/error.h"

namespace tessera::formats {
namespace {

constexpr const char* kIdx = "formats.parse_idx";
constexpr uint8_t kUnsignedBytes = 0x08;
constexpr size_t kMagicBytes = 4, kSizeBytes = 4, kMostDims = 4;

}  // namespace

Idx parse_idx(std::string bytes, const std::string& name) {
  const auto at = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  if (bytes.size() < kMagicBytes) {
    user_error({.where = kIdx,
                .problem = concat(name, " is not an idx file: it has only ", bytes.size(), " bytes")});
  }
  if (at(0) != 0 || at(1) != 0) {
    user_error({.where = kIdx,
                .problem = concat(name, " is not an idx file: it starts with the bytes ", int{at(0)}, " and ",
                                  int{at(1)}),
                .expected = "two zero bytes"});
  }
  if (at(2) != kUnsignedBytes) {
    user_error({.where = kIdx,
                .problem = concat(name, " is an idx file of type ", int{at(2)}),
                .expected = "unsigned bytes (type 8)"});
  }
  const size_t count = at(3);
  if (count < 1 || count > kMostDims) {
    user_error({.where = kIdx,
                .problem = concat(name, " is an idx file of ", count, " dimensions"),
                .expected = "1 to 4"});
  }
  Idx idx;
  idx.data_offset = kMagicBytes + count * kSizeBytes;
  if (bytes.size() < idx.data_offset) {
    user_error({.where = kIdx,
                .problem = concat(name, " is cut off: it has ", bytes.size(), " bytes"),
                .expected = concat("an idx header of ", idx.data_offset, " bytes")});
  }
  const uint64_t found = bytes.size() - idx.data_offset;
  uint64_t expected = 1;
  bool too_large = false;
  for (size_t d = 0; d < count; ++d) {
    uint64_t size = 0;
    for (size_t i = 0; i < kSizeBytes; ++i) size = size << 8 | at(kMagicBytes + d * kSizeBytes + i);
    idx.dims.push_back(static_cast<int64_t>(size));
    too_large |= __builtin_mul_overflow(expected, size, &expected);
  }
  if (too_large || expected != found) {
    std::string dims;
    for (const int64_t dim : idx.dims) dims += concat(dims.empty() ? "" : " x ", dim);
    user_error({.where = kIdx,
                .problem = concat(name, !too_large && found > expected ? " is too long" : " is cut off",
                                  ": it has ", found, " bytes of data"),
                .expected = concat(dims, " bytes")});
  }
  idx.file = std::move(bytes);
  return idx;
}

}  // namespace tessera::formats
