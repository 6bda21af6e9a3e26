// JPEG through libjpeg-turbo. Pure function, safe from any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "tessera/formats/image.h"

namespace tessera::formats {

/// Baseline, progressive, arithmetic; gray stays 1 channel, YCbCr and RGB become RGB, CMYK and YCCK (Adobe's
/// inverted values) become RGB.
/// What is refused: a header that cannot be read; sizes above `max_pixels`; data that end before the last
/// pixel; more than 500 scans. What is tolerated, as in Pillow: damaged entropy data, stray bytes between
/// markers, a sequential image whose end marker alone is missing.
/// Errors: UserError that names `name` and the reason.
Image decode_jpeg(std::span<const uint8_t> bytes, const std::string& name, int64_t max_pixels = kMaxPixels);

}  // namespace tessera::formats
