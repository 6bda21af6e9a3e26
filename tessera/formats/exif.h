// SPDX-License-Identifier: Apache-2.0
// The one thing of EXIF that changes how an image looks. Pure function, safe from any thread.
#pragma once

#include <cstdint>
#include <span>

namespace tessera::formats {

/// The orientation (tag 0x0112 of the first directory of a TIFF header), 1 to 8: how the stored rows are to
/// be turned. 1 where it is missing, damaged or out of range. Source: Exif 2.32, 4.6.4 A.
int exif_orientation(std::span<const uint8_t> tiff);

}  // namespace tessera::formats
