// SPDX-License-Identifier: Apache-2.0
#include "tessera/formats/exif.h"

namespace tessera::formats {
namespace {

constexpr uint32_t kOrientationTag = 0x0112, kShort = 3;
constexpr size_t kTiffHeader = 8, kTiffEntry = 12;

/// Numbers of a TIFF header in its byte order; 0 beyond its end.
struct Tiff {
  std::span<const uint8_t> bytes;
  bool big_endian;

  uint32_t number(size_t at, size_t size) const {
    if (at > bytes.size() || size > bytes.size() - at) return 0;
    uint32_t value = 0;
    for (size_t i = 0; i < size; ++i) value = value << 8 | bytes[at + (big_endian ? i : size - 1 - i)];
    return value;
  }
};

}  // namespace

int exif_orientation(std::span<const uint8_t> tiff) {
  if (tiff.size() < kTiffHeader || tiff[0] != tiff[1] || (tiff[0] != 'I' && tiff[0] != 'M')) return 1;
  const Tiff header{tiff, tiff[0] == 'M'};
  if (header.number(2, 2) != 42) return 1;
  const size_t directory = header.number(4, 4);
  const size_t entries = header.number(directory, 2);
  for (size_t i = 0; i < entries; ++i) {
    const size_t entry = directory + 2 + i * kTiffEntry;
    if (entry + kTiffEntry > tiff.size()) return 1;
    if (header.number(entry, 2) != kOrientationTag) continue;
    const uint32_t value = header.number(entry + 8, 2);
    return header.number(entry + 2, 2) == kShort && value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
  }
  return 1;
}

}  // namespace tessera::formats
