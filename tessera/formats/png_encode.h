// Pixels to the bytes of a PNG file. Pure, safe from any thread.
#pragma once

#include <cstdint>
#include <vector>

namespace tessera::formats {

/// `pixels`: [height, width, channels], 8 bits each; channels 1 grey, 2 grey and alpha, 3 RGB, 4 RGBA.
/// Requires: width and height in 1..2^24, channels in 1..4 (TESSERA_CHECK).
std::vector<uint8_t> encode_png(const uint8_t* pixels, int64_t width, int64_t height, int64_t channels);

}  // namespace tessera::formats
