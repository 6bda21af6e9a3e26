// SPDX-License-Identifier: Apache-2.0
// The image that make_augment_expected.py makes by the same formula: texture, a plain corner and a slope.
#pragma once

#include <algorithm>
#include <cstdint>

#include "tessera/formats/image.h"

namespace tessera::data {

inline formats::Image augment_picture(int64_t width, int64_t height, int64_t channels) {
  formats::Image image{width, height, channels, {}};
  for (int64_t y = 0; y < height; ++y) {
    for (int64_t x = 0; x < width; ++x) {
      for (int64_t c = 0; c < channels; ++c) {
        int64_t level = (x * 7 + y * 13 + c * 29 + x * y * 3 + (x / 5) * (y / 3) * 17) % 256;
        if (y >= height - 4) level = 60 + 5 * x + 20 * c;
        if (x < 5 && y < 5) level = 37 + 90 * c;
        image.pixels.push_back(static_cast<uint8_t>(std::clamp<int64_t>(level, 0, 255)));
      }
    }
  }
  return image;
}

}  // namespace tessera::data
