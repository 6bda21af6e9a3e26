#include "tessera/formats/image.h"

#include <algorithm>
#include <array>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
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

}  // namespace

Image decode_image(std::span<const uint8_t> bytes, const std::string& name, int64_t max_pixels) {
  if (starts_with(bytes, kJpegMagic)) return decode_jpeg(bytes, name, max_pixels);
  if (starts_with(bytes, kPngMagic)) return decode_png(bytes, name, max_pixels);
  if (bytes.empty())
    user_error("formats.decode_image", "a JPEG or PNG image: found an empty file (", name, ")");
  user_error("formats.decode_image", "a JPEG or PNG image: found a file that starts with the bytes ",
             first_bytes(bytes), " (", name, ")");
}

Image convert_channels(Image image, int64_t channels) {
  if (image.channels == channels) return image;
  TESSERA_CHECK((image.channels == 1 && channels == 3) || (image.channels == 3 && channels == 1), "channels ",
                image.channels, " to ", channels);
  const size_t count = static_cast<size_t>(image.width * image.height);
  std::vector<uint8_t> out(count * static_cast<size_t>(channels));
  const uint8_t* in = image.pixels.data();
  if (channels == 3) {
    for (size_t i = 0; i < count; ++i) out[3 * i] = out[3 * i + 1] = out[3 * i + 2] = in[i];
  } else {
    for (size_t i = 0; i < count; ++i) {
      const uint32_t luma = 19595U * in[3 * i] + 38470U * in[3 * i + 1] + 7471U * in[3 * i + 2] + 0x8000U;
      out[i] = static_cast<uint8_t>(luma >> 16);
    }
  }
  image.channels = channels;
  image.pixels = std::move(out);
  return image;
}

void check_pixels(const char* where, int64_t width, int64_t height, const std::string& name,
                  int64_t max_pixels) {
  if (width > 0 && height > 0 && width <= max_pixels / height) return;
  user_error(where, "an image of 1 to ", human_count(max_pixels), " pixels: found ", width, " x ", height,
             " (", name, ")");
}

}  // namespace tessera::formats
