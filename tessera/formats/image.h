// SPDX-License-Identifier: Apache-2.0
// Decoded images, and the one door to the decoders. Pure functions, safe from any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tessera::formats {

/// Interleaved bytes, row after row.
struct Image {
  int64_t width = 0, height = 0, channels = 0;  // channels 1 (luma) or 3 (RGB)
  std::vector<uint8_t> pixels;                  // [height, width, channels]
};

/// A rectangle of pixels.
struct Box {
  int64_t x = 0, y = 0, width = 0, height = 0;
};

/// Larger images are refused before any memory is asked for; Pillow refuses at the same number.
inline constexpr int64_t kMaxPixels = 178'956'970;

/// Decodes JPEG or PNG, told apart by their first bytes, never by a name. An orientation in EXIF is not
/// applied, as in torchvision's and timm's data sets. `name` is for messages.
/// Errors: UserError that names `name` and the reason.
Image decode_image(std::span<const uint8_t> bytes, const std::string& name, int64_t max_pixels = kMaxPixels);

/// To 1 channel (ITU-R 601 luma, rounded as Pillow does) or 3 (gray repeated).
Image convert_channels(Image image, int64_t channels);
/// The same for a row: `count` RGB pixels to luma.
void luma_of_rgb(const uint8_t* rgb, int64_t count, uint8_t* luma);

/// A UserError of a decoder for a picture of more than `max_pixels`.
void check_pixels(const char* where, int64_t width, int64_t height, const std::string& name,
                  int64_t max_pixels);

}  // namespace tessera::formats
