// SPDX-License-Identifier: Apache-2.0
// An encoded image, opened: its header first, then one part of it, row by row, so that a crop costs little
// more than its own pixels. One thread at a time; readers of different threads are independent.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "tessera/formats/image.h"

namespace tessera::formats {

/// What an image says of itself before a pixel is decoded.
struct ImageHeader {
  int64_t width = 0, height = 0;  // as stored, before any orientation
  int64_t channels = 0;           // of the rows: 1 (luma) or 3 (RGB)
  int orientation = 1;            // EXIF's, 1 to 8; 1 where none is given or none was asked for
  int64_t max_shrink = 1;         // it can also be decoded at 1/2, 1/4, ... 1/max_shrink
};

struct OpenOptions {
  int64_t max_pixels = kMaxPixels;
  bool read_orientation = false;
};

/// Bytes that may be read beyond the end of a row, whatever they hold: wide loads need not stop short.
inline constexpr int64_t kRowPadding = 64;

class ImageReader {
 public:
  virtual ~ImageReader() = default;
  ImageReader(const ImageReader&) = delete;
  ImageReader& operator=(const ImageReader&) = delete;

  const ImageHeader& header() const { return header_; }

  /// Once, before the first row. `part` lies inside the image shrunk by `shrink` (1, 2, 4 or 8, at most
  /// max_shrink), whose sides are ceil(side / shrink). Its pixels are those of a decoding of the whole.
  /// Errors: UserError that names the image and the reason, as of next_row().
  virtual void start(const Box& part, int64_t shrink) = 0;
  /// The next row of the part: part.width * channels bytes and kRowPadding more, valid until the next call.
  /// What lies below the part is never looked at, nor is damage there.
  virtual const uint8_t* next_row() = 0;

 protected:
  ImageReader() = default;
  ImageHeader header_;
};

/// JPEG or PNG, told apart by their first bytes, never by a name. The bytes must outlive the reader.
/// Errors: UserError that names `name` and the reason; more than `max_pixels` before any memory is asked for.
std::unique_ptr<ImageReader> open_image(std::span<const uint8_t> bytes, const std::string& name,
                                        const OpenOptions& options);

/// Reads the pixels of `image`, which must outlive the reader.
std::unique_ptr<ImageReader> open_pixels(const Image& image);

/// Starts the reader with the whole image and reads it.
Image read_whole(ImageReader& reader);

}  // namespace tessera::formats
