// PNG through libpng, both ways. Pure functions, safe from any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tessera/formats/image.h"

namespace tessera::formats {

/// Any PNG to 8 bits: gray stays 1 channel, palettes become RGB, of 16 bits the upper 8 stay, alpha and
/// transparent colours are dropped (colours stay as stored, as Pillow's convert("RGB")), gamma is not
/// applied. Errors: UserError that names `name` and the reason: damaged or cut off, or above `max_pixels`.
Image decode_png(std::span<const uint8_t> bytes, const std::string& name, int64_t max_pixels = kMaxPixels);

/// A whole PNG file from [height, width, channels] bytes; channels 1 (gray), 3 (RGB) or 4 (RGBA).
std::vector<uint8_t> encode_png(const uint8_t* pixels, int64_t width, int64_t height, int64_t channels);

}  // namespace tessera::formats
