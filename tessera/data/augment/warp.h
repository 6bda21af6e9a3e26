// SPDX-License-Identifier: Apache-2.0
// Affine maps of an image onto its own canvas. Pure functions, safe from any thread.
#pragma once

#include <array>
#include <cstdint>

#include "tessera/data/resize.h"
#include "tessera/formats/image.h"

namespace tessera::data {

/// Where an output pixel (x, y) takes its colour: source x = a x + b y + c, source y = d x + e y + f.
struct Affine {
  double a = 1, b = 0, c = 0, d = 0, e = 1, f = 0;
};

Affine shear_x(double level);
Affine shear_y(double level);
Affine translate_x(double pixels);
Affine translate_y(double pixels);
/// Counterclockwise around the centre, as Pillow's Image.rotate.
Affine rotation(double degrees, int64_t width, int64_t height);

/// Colour of what lies outside the source; of 1 channel the first number counts.
using Fill = std::array<uint8_t, 3>;

/// Byte for byte Pillow's image.transform(size, AFFINE, ..., fillcolor): coordinates of pixel centres, a
/// cubic of a = -1, truncated. No antialiasing.
formats::Image warp(const formats::Image& image, const Affine& map, Filter filter, const Fill& fill);

}  // namespace tessera::data
