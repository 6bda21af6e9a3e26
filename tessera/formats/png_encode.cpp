#include "tessera/formats/png_encode.h"

#include <png.h>

#include "tessera/base/error.h"

namespace tessera::formats {

std::vector<uint8_t> encode_png(const uint8_t* pixels, int64_t width, int64_t height, int64_t channels) {
  constexpr int64_t kLargestSide = int64_t{1} << 24;
  static constexpr png_uint_32 kFormats[] = {PNG_FORMAT_GRAY, PNG_FORMAT_GA, PNG_FORMAT_RGB, PNG_FORMAT_RGBA};
  TESSERA_CHECK(width > 0 && height > 0 && width <= kLargestSide && height <= kLargestSide, "size ", width,
                "x", height);
  TESSERA_CHECK(channels >= 1 && channels <= 4, "channels ", channels);
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(width);
  image.height = static_cast<png_uint_32>(height);
  image.format = kFormats[channels - 1];

  // The bound is known without compressing, so one pass over the pixels is enough.
  png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(image);
  std::vector<uint8_t> bytes(size);
  const int done = png_image_write_to_memory(&image, bytes.data(), &size, 0, pixels, 0, nullptr);
  TESSERA_CHECK(done != 0, "libpng says: ", image.message);
  bytes.resize(size);
  return bytes;
}

}  // namespace tessera::formats
