// SPDX-License-Identifier: Apache-2.0
// PNG through libpng, both ways. Pure functions, safe from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tessera/formats/image_reader.h"

namespace tessera::formats {

/// Any PNG to 8 bits: gray stays 1 channel, palettes become RGB, of 16 bits the upper 8 stay, alpha and
/// transparent colours are dropped (colours stay as stored, as Pillow's convert("RGB")), gamma is not
/// applied. An orientation is taken from an eXIf chunk before the pixels.
/// Errors: UserError that names `name` and the reason: damaged or cut off, or above `max_pixels`.
std::unique_ptr<ImageReader> open_png(std::span<const uint8_t> bytes, const std::string& name,
                                      const OpenOptions& options);

/// A whole PNG file from [height, width, channels] bytes; channels 1 (gray), 3 (RGB) or 4 (RGBA).
std::vector<uint8_t> encode_png(const uint8_t* pixels, int64_t width, int64_t height, int64_t channels);

}  // namespace tessera::formats
