// SPDX-License-Identifier: Apache-2.0
#include "tessera/formats/image.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/formats/image_reader.h"
#include "tessera/formats/jpeg.h"
#include "tessera/formats/png.h"

namespace tessera::formats {
namespace {

constexpr std::array<uint8_t, 3> kJpegMagic = {0xFF, 0xD8, 0xFF};
constexpr std::array<uint8_t, 8> kPngMagic = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1A, '\n'};

template <size_t N>
bool starts_with(std::span<const uint8_t> bytes, const std::array<uint8_t, N>& magic) {
  return bytes.size() >= N && std::equal(magic.begin(), magic.end(), bytes.begin());
}

std::string first_bytes(std::span<const uint8_t> bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (const uint8_t byte : bytes.first(std::min<size_t>(bytes.size(), 4))) {
    if (!out.empty()) out += ' ';
    out += {kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return out;
}

/// Rows of pixels that are in memory already, copied to have their padding.
class PixelReader : public ImageReader {
 public:
  explicit PixelReader(const Image& image) : image_(image) {
    header_.width = image.width;
    header_.height = image.height;
    header_.channels = image.channels;
  }

  void start(const Box& part, int64_t shrink) override {
    TESSERA_CHECK_EQ(shrink, 1);
    part_ = part;
    row_.resize(static_cast<size_t>(part.width * image_.channels + kRowPadding));
  }

  const uint8_t* next_row() override {
    const uint8_t* row = image_.pixels.data() + (part_.y * image_.width + part_.x) * image_.channels;
    std::memcpy(row_.data(), row, static_cast<size_t>(part_.width * image_.channels));
    ++part_.y;
    return row_.data();
  }

 private:
  const Image& image_;
  Box part_;
  std::vector<uint8_t> row_;
};

}  // namespace

std::unique_ptr<ImageReader> open_image(std::span<const uint8_t> bytes, const std::string& name,
                                        const OpenOptions& options) {
  if (starts_with(bytes, kJpegMagic)) return open_jpeg(bytes, name, options);
  if (starts_with(bytes, kPngMagic)) return open_png(bytes, name, options);
  if (bytes.empty())
    user_error({.where = "formats.decode_image",
                .problem = concat(name, " is empty"),
                .expected = "a JPEG or PNG image"});
  user_error({.where = "formats.decode_image",
              .problem = concat(name, " starts with the bytes ", first_bytes(bytes)),
              .expected = "a JPEG or PNG image"});
}

std::unique_ptr<ImageReader> open_pixels(const Image& image) { return std::make_unique<PixelReader>(image); }

Image read_whole(ImageReader& reader) {
  const ImageHeader& header = reader.header();
  Image image{header.width, header.height, header.channels, {}};
  const auto row = static_cast<size_t>(image.width * image.channels);
  image.pixels.resize(row * static_cast<size_t>(image.height));
  reader.start({0, 0, image.width, image.height}, 1);
  for (int64_t y = 0; y < image.height; ++y) {
    std::memcpy(image.pixels.data() + static_cast<size_t>(y) * row, reader.next_row(), row);
  }
  return image;
}

Image decode_image(std::span<const uint8_t> bytes, const std::string& name, int64_t max_pixels) {
  return read_whole(*open_image(bytes, name, {max_pixels, false}));
}

void luma_of_rgb(const uint8_t* rgb, int64_t count, uint8_t* luma) {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t sum = 19595U * rgb[3 * i] + 38470U * rgb[3 * i + 1] + 7471U * rgb[3 * i + 2] + 0x8000U;
    luma[i] = static_cast<uint8_t>(sum >> 16);
  }
}

Image convert_channels(Image image, int64_t channels) {
  if (image.channels == channels) return image;
  TESSERA_CHECK((image.channels == 1 && channels == 3) || (image.channels == 3 && channels == 1), "channels ",
                image.channels, " to ", channels);
  const int64_t count = image.width * image.height;
  std::vector<uint8_t> out(static_cast<size_t>(count * channels));
  const uint8_t* in = image.pixels.data();
  if (channels == 3) {
    for (int64_t i = 0; i < count; ++i) std::memset(out.data() + 3 * i, in[i], 3);
  } else {
    luma_of_rgb(in, count, out.data());
  }
  image.channels = channels;
  image.pixels = std::move(out);
  return image;
}

void check_pixels(const char* where, int64_t width, int64_t height, const std::string& name,
                  int64_t max_pixels) {
  if (width > 0 && height > 0 && width <= max_pixels / height) return;
  user_error({.where = where,
              .problem = concat(name, " is an image of ", width, " x ", height, " pixels"),
              .expected = concat("1 to ", human_count(max_pixels), " pixels")});
}

}  // namespace tessera::formats
