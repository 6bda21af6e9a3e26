// SPDX-License-Identifier: Apache-2.0
#include "tessera/prepare/image_kind.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include "tessera/base/error.h"

namespace tessera::prepare {
namespace {

constexpr std::string_view kJpegMagic = "\xFF\xD8\xFF";
constexpr std::string_view kPngMagic = "\x89PNG\r\n\x1A\n";
constexpr std::string_view kExif("Exif\0\0", 6);

/// Numbers of a block of bytes; beyond its end there are zeros.
class Bytes {
 public:
  explicit Bytes(std::span<const uint8_t> bytes) : bytes_(bytes) {}
  uint32_t u8(size_t at) const { return at < bytes_.size() ? bytes_[at] : 0; }
  uint32_t u16(size_t at) const { return u8(at) << 8 | u8(at + 1); }
  uint32_t u32(size_t at) const { return u16(at) << 16 | u16(at + 2); }
  uint32_t u16_le(size_t at) const { return u8(at + 1) << 8 | u8(at); }
  uint32_t u32_le(size_t at) const { return u16_le(at + 2) << 16 | u16_le(at); }
  bool starts_with(std::string_view text) const {
    return bytes_.size() >= text.size() && std::memcmp(bytes_.data(), text.data(), text.size()) == 0;
  }
  size_t size() const { return bytes_.size(); }
  Bytes from(size_t at, size_t count) const {
    at = std::min(at, bytes_.size());
    return Bytes(bytes_.subspan(at, std::min(count, bytes_.size() - at)));
  }

 private:
  std::span<const uint8_t> bytes_;
};

bool is_frame(uint32_t marker) {
  return marker >= 0xC0 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 && marker != 0xCC;
}

/// T.81, table B.1.
std::string process_name(uint32_t marker) {
  const std::string coding = marker > 0xC8 ? " arithmetic" : "";
  switch (marker & 3) {
    case 0:
      return "baseline" + coding;
    case 1:
      return (coding.empty() ? "extended" : "sequential") + coding;
    case 2:
      return "progressive" + coding;
    default:
      return "lossless" + coding;
  }
}

std::string colour_name(uint32_t components, int adobe_transform) {
  if (components == 1) return " gray";
  if (components == 3) return adobe_transform == 0 ? " RGB" : "";
  if (components == 4) return adobe_transform == 2 ? " YCCK" : " CMYK";
  return concat(" of ", components, " components");
}

/// TIFF 6.0: the first directory's entry 0x0112.
int64_t exif_orientation(const Bytes& tiff) {
  const bool little = tiff.u16(0) == 0x4949;
  const auto u16 = [&](size_t at) { return little ? tiff.u16_le(at) : tiff.u16(at); };
  const size_t directory = little ? tiff.u32_le(4) : tiff.u32(4);
  if (directory > tiff.size()) return 1;
  const uint32_t entries = u16(directory);
  for (size_t i = 0; i < entries; ++i) {
    const size_t entry = directory + 2 + 12 * i;
    if (entry + 12 > tiff.size()) break;
    if (u16(entry) != 0x0112) continue;
    const uint32_t value = u16(entry + 8);
    return value >= 1 && value <= 8 ? value : 1;
  }
  return 1;
}

ImageKind jpeg_kind(const Bytes& file) {
  ImageKind kind;
  kind.name = "JPEG without a frame";
  int adobe_transform = -1;
  size_t at = 2;
  while (at + 1 < file.size()) {
    if (file.u8(at) != 0xFF || file.u8(at + 1) == 0xFF || file.u8(at + 1) == 0) {  // fill and stray bytes
      ++at;
      continue;
    }
    const uint32_t marker = file.u8(at + 1);
    at += 2;
    if (marker == 0x01 || (marker >= 0xD0 && marker <= 0xD8)) continue;  // without a length
    if (marker == 0xD9 || marker == 0xDA) break;                         // end, or data before any frame
    const size_t length = std::max<size_t>(file.u16(at), 2);
    const Bytes body = file.from(at + 2, length - 2);
    if (marker == 0xEE && body.starts_with("Adobe") && body.size() >= 12) {
      adobe_transform = static_cast<int>(body.u8(11));
    } else if (marker == 0xE1 && body.starts_with(kExif)) {
      kind.orientation = exif_orientation(body.from(kExif.size(), body.size()));
    } else if (is_frame(marker)) {
      kind.height = body.u16(1);
      kind.width = body.u16(3);
      kind.channels = body.u8(5);
      const std::string bits = body.u8(0) == 8 ? "" : concat(" ", body.u8(0), " bit");
      kind.name = concat("JPEG ", process_name(marker), colour_name(body.u8(5), adobe_transform), bits);
      break;
    }
    at += length;
  }
  return kind;
}

ImageKind png_kind(const Bytes& file) {
  ImageKind kind;
  kind.name = "PNG without a header";
  if (file.size() < 33 || !file.from(12, 4).starts_with("IHDR")) return kind;
  static constexpr std::array<const char*, 7> kTypes = {"gray",       nullptr, "RGB", "palette",
                                                        "gray alpha", nullptr, "RGBA"};
  static constexpr std::array<int64_t, 7> kChannels = {1, 0, 3, 3, 2, 0, 4};
  const uint32_t bits = file.u8(24), type = file.u8(25);
  const char* name = type < kTypes.size() ? kTypes[type] : nullptr;
  kind.width = file.u32(16);
  kind.height = file.u32(20);
  kind.channels = name == nullptr ? 0 : kChannels[type];
  kind.name = concat("PNG ", name == nullptr ? "of an unknown type" : name,
                     bits == 8 ? "" : concat(" ", bits, " bit"), file.u8(28) == 1 ? " interlaced" : "");
  return kind;
}

}  // namespace

const char* image_ending(std::span<const uint8_t> bytes) {
  const Bytes file(bytes);
  if (file.starts_with(kJpegMagic)) return "jpg";
  return file.starts_with(kPngMagic) ? "png" : nullptr;
}

ImageKind image_kind(std::span<const uint8_t> bytes) {
  const char* ending = image_ending(bytes);
  if (ending == nullptr) return {};
  return ending[0] == 'j' ? jpeg_kind(Bytes(bytes)) : png_kind(Bytes(bytes));
}

}  // namespace tessera::prepare
