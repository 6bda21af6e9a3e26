// SPDX-License-Identifier: Apache-2.0
// Antialiased separable resizing, by the definition Pillow and torchvision (antialias=True) use: the filter
// grows with the scale, samples beyond the source box do not exist. In integers, byte for byte what Pillow
// gives for image.crop(box).resize(size) (up to 12; 13 turns the order of the passes round for tall images).
// Safe from any thread.
#pragma once

#include <cstdint>

#include "tessera/data/source.h"
#include "tessera/data/taps.h"
#include "tessera/formats/image_reader.h"

namespace tessera::data {

using Box = formats::Box;

/// Box `source` of an image scaled to width x height, of which only box `window` is computed.
struct Scaling {
  Box source;
  int64_t width = 0, height = 0;
  Box window;
  Filter filter = Filter::kBilinear;
};

/// One resize, planned before a pixel is there: which part of the image it reads, then row by row, so that
/// the rows in work stay in the nearest cache.
class Resizer {
 public:
  /// `shrink`: the rows will come from a decoding at 1/shrink. `mirror`: left and right change places.
  /// Requires: boxes inside, no size zero.
  explicit Resizer(const Scaling& scaling, int64_t shrink = 1, bool mirror = false);

  /// The part to start the reader with, of the shrunk image.
  const Box& reads() const { return reads_; }
  /// The window as an image of its own, of 1 or 3 channels, rounded to bytes. Colour becomes luma before the
  /// resize, gray is repeated after it. `rows`: started at reads(), no row read.
  Image run(formats::ImageReader& rows, int64_t channels) const;

 private:
  bool copies() const { return across_.outputs() == 0; }

  int64_t width_ = 0, height_ = 0;  // of the window
  bool mirror_ = false;
  Box reads_;
  Taps across_, down_;  // of reads(); empty where nothing is scaled
};

/// The window of an image in memory.
Image resize(const Image& image, const Scaling& scaling);

}  // namespace tessera::data
