// Antialiased separable resizing, by the definition Pillow and torchvision (antialias=True) use: the filter
// grows with the scale, samples beyond the source box do not exist. In integers, byte for byte what Pillow
// gives for image.crop(box).resize(size) (up to 12; 13 turns the order of the passes round for tall images).
// Pure function, safe from any thread.
#pragma once

#include <cstdint>

#include "tessera/data/source.h"

namespace tessera::data {

struct Box {
  int64_t x = 0, y = 0, width = 0, height = 0;
};

enum class Filter { kBilinear, kBicubic };

/// Box `source` of an image scaled to width x height, of which only box `window` is computed.
struct Scaling {
  Box source;
  int64_t width = 0, height = 0;
  Box window;
  Filter filter = Filter::kBilinear;
};

/// The window as an image of its own, rounded to bytes. Requires: boxes inside, no size zero, 1 or 3
/// channels.
Image resize(const Image& image, const Scaling& scaling);

}  // namespace tessera::data
