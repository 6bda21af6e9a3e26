// SPDX-License-Identifier: Apache-2.0
// Gaussian blur as Pillow makes it: three box blurs with fractional edges in each direction (Gwosdek,
// Grewenig, Bruhn and Weickert, "Theoretical foundations of Gaussian convolution by extended box filtering",
// SSVM 2011). Pure function, safe from any thread.
#pragma once

#include "tessera/formats/image.h"

namespace tessera::data {

/// `radius`: standard deviation in pixels, at least 0; 0 changes nothing. Byte for byte what Pillow's
/// ImageFilter.GaussianBlur(radius) gives.
void gaussian_blur(formats::Image* image, float radius);

}  // namespace tessera::data
