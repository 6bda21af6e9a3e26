// SPDX-License-Identifier: Apache-2.0
// Where big_vision's RandAugment (big_vision/pp/autoaugment.py, on TensorFlow) differs from Pillow's
// operations. Pure functions, safe from any thread.
#pragma once

#include "tessera/data/augment/warp.h"
#include "tessera/formats/image.h"

namespace tessera::data::tensorflow {

/// Blend with the luma of tf.image.rgb_to_grayscale: 0.2989, 0.587, 0.114 in floats, times 255.5, truncated.
void color(formats::Image* image, float factor);
/// Blend with a gray that is not the image's mean but its number of pixels / 256, at most 255: what
/// big_vision's code does (196 at 224 x 224).
void contrast(formats::Image* image, float factor);
/// As Pillow's, with a smoothed image truncated instead of rounded.
void sharpness(formats::Image* image, float factor);
/// Sets a square of 2 * half pixels around (x, y), as far as it lies inside, to `level`.
void cutout(formats::Image* image, int64_t x, int64_t y, int64_t half, uint8_t level);
/// tensorflow_addons' transform: the nearest source pixel, coordinates of pixels and not of their centres.
formats::Image warp_nearest(const formats::Image& image, const Affine& map, const Fill& fill);
/// tensorflow_addons' rotate: around the centre of the corner pixels' centres.
Affine rotation(double degrees, int64_t width, int64_t height);

}  // namespace tessera::data::tensorflow
