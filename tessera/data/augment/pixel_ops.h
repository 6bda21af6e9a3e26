// SPDX-License-Identifier: Apache-2.0
// Operations on levels and colours of an image, byte for byte as Pillow's ImageOps and ImageEnhance. In
// place, for 1 or 3 channels. Pure functions, safe from any thread.
#pragma once

#include <algorithm>
#include <cstdint>

#include "tessera/formats/image.h"

namespace tessera::data {

using Image = formats::Image;

/// 255 - level.
void invert(Image* image);
/// Each channel stretched linearly from its least and greatest level to 0..255.
void auto_contrast(Image* image);
/// Each channel mapped through its own cumulative histogram.
void equalize(Image* image);
/// Keeps the `bits` highest bits of each level; 0 gives black, where Pillow 13 throws. bits: 0..8.
void posterize(Image* image, int64_t bits);
/// Inverts levels of at least `threshold`.
void solarize(Image* image, double threshold);
/// Adds to levels below `threshold`, up to 255. add >= 0.
void solarize_add(Image* image, int64_t add, int64_t threshold = 128);

// Blends of the image with a plainer one; a factor of 0 gives the plain one, 1 the image, more goes beyond
// it.

/// With black.
void brightness(Image* image, float factor);
/// With the mean of its luma, rounded.
void contrast(Image* image, float factor);
/// With its luma; nothing for 1 channel.
void color(Image* image, float factor);
/// With itself smoothed by (1 1 1; 1 5 1; 1 1 1) / 13; the outermost pixels stay.
void sharpness(Image* image, float factor);

/// The three channels become their luma.
void grayscale(Image* image);
/// Turns the hue by `turns` of the circle, -0.5..0.5, through bytes of HSV as torchvision's adjust_hue does
/// with Pillow; nothing for 1 channel.
void turn_hue(Image* image, double turns);

/// The byte of low + factor * (high - low), truncated and clamped as Pillow's Image.blend.
inline uint8_t blend(uint8_t low, uint8_t high, float factor) {
  const float value = static_cast<float>(low) + factor * static_cast<float>(high - low);
  return static_cast<uint8_t>(static_cast<int>(std::min(std::max(value, 0.0F), 255.0F)));
}
/// Replaces each level by table[level], in all channels.
void map_levels(Image* image, const uint8_t (&table)[256]);

}  // namespace tessera::data
