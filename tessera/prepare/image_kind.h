// SPDX-License-Identifier: Apache-2.0
// What kind of image file some bytes are, from their headers, without decoding. Pure, safe from any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace tessera::prepare {

/// "jpg" or "png" by the first bytes; null where they are neither.
const char* image_ending(std::span<const uint8_t> bytes);

struct ImageKind {
  std::string name;  // "JPEG progressive gray", "PNG palette 4 bit interlaced"; "" where it is no image
  int64_t width = 0, height = 0;
  int64_t channels = 0;     // as stored: 1, 2 (PNG gray with alpha), 3, 4
  int64_t orientation = 1;  // of EXIF, JPEG only
};

/// ITU-T T.81 (markers B.1.1.3, frames B.2.2) with Adobe's APP14 and EXIF's APP1; the PNG specification's
/// IHDR (11.2.1). A size of 0 stays: decoders refuse it.
ImageKind image_kind(std::span<const uint8_t> bytes);

}  // namespace tessera::prepare
