// SPDX-License-Identifier: Apache-2.0
// EXIF orientation: the picture one sees against the rows as stored. Pure functions, safe from any thread.
#pragma once

#include "tessera/data/resize.h"

namespace tessera::data {

/// Pixel (x, y) of the upright picture is the stored pixel (a, b), where (a, b) = (y, x) if `swap`, else
/// (x, y), counted from the right if `flip_x` and from the bottom if `flip_y`.
struct Turn {
  bool swap = false, flip_x = false, flip_y = false;
};

/// Of an orientation 1 to 8 (Exif 2.32, 4.6.4 A).
Turn turn_of(int orientation);
/// The same picture with left and right changed.
Turn mirrored(Turn turn);

/// A scaling of the upright picture as one of the stored image, width x height before any turn.
Scaling to_stored(const Scaling& upright, Turn turn, int64_t width, int64_t height);
/// The upright picture of stored pixels.
Image turned(Image stored, Turn turn);

}  // namespace tessera::data
