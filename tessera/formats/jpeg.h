// SPDX-License-Identifier: Apache-2.0
// JPEG through libjpeg-turbo, both ways. Pure functions, safe from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tessera/formats/image_reader.h"

namespace tessera::formats {

/// Baseline, progressive, arithmetic; gray stays 1 channel, YCbCr and RGB become RGB, CMYK and YCCK (Adobe's
/// inverted values) become RGB. Shrinks to 1/2, 1/4 and 1/8, where libjpeg-turbo has vector code.
/// What is refused: a header that cannot be read; sizes above `max_pixels`; data that end before the last
/// pixel asked for; more than 500 scans; where the last row is asked for, a marker after or among the data
/// that cannot stand there. What is tolerated, as in Pillow: damaged entropy data, stray bytes between
/// markers, a sequential image whose end marker alone is missing. Errors: UserError that names `name` and the
/// reason.
std::unique_ptr<ImageReader> open_jpeg(std::span<const uint8_t> bytes, const std::string& name,
                                       const OpenOptions& options);

/// A whole baseline file of gray or RGB pixels, colour at half the resolution (4:2:0); quality 1 to 100.
std::vector<uint8_t> encode_jpeg(const Image& image, int quality);

}  // namespace tessera::formats
