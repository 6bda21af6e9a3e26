// SPDX-License-Identifier: Apache-2.0
// A part of an image against the decoding of the whole.
#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/random.h"
#include "tessera/formats/exif.h"
#include "tessera/formats/image_reader.h"
#include "tessera/formats/png.h"
#include "tests/data/shared_data.h"
#include "tests/error_text.h"
#include "tests/formats/jpeg_maker.h"

namespace tessera::formats {
namespace {

/// Smooth waves under noise of 0 to `noise` levels: coefficients of every size.
Bytes picture(int64_t width, int64_t height, int64_t channels, uint64_t noise) {
  Bytes pixels;
  for (int64_t y = 0; y < height; ++y) {
    for (int64_t x = 0; x < width; ++x) {
      for (int64_t c = 0; c < channels; ++c) {
        const auto element = static_cast<uint64_t>((y * width + x) * channels + c);
        pixels.push_back(
            static_cast<uint8_t>((3 * x + 2 * y * (c + 1)) % (256 - static_cast<int64_t>(noise)) +
                                 static_cast<int64_t>(random_below(7, element, noise + 1))));
      }
    }
  }
  return pixels;
}

Bytes jpeg(int width, int height, const JpegKind& kind, uint64_t noise = 40) {
  return encode_jpeg(picture(width, height, channels_of(kind.space), noise), width, height, kind);
}

Image read_part(std::span<const uint8_t> bytes, const Box& part, int64_t shrink) {
  const auto reader = open_image(bytes, "part", {});
  Image image{part.width, part.height, reader->header().channels, {}};
  reader->start(part, shrink);
  for (int64_t y = 0; y < part.height; ++y) {
    const uint8_t* row = reader->next_row();
    image.pixels.insert(image.pixels.end(), row, row + part.width * image.channels);
  }
  return image;
}

Image cut(const Image& image, const Box& box) {
  Image out{box.width, box.height, image.channels, {}};
  for (int64_t y = box.y; y < box.y + box.height; ++y) {
    const auto row = image.pixels.begin() + (y * image.width + box.x) * image.channels;
    out.pixels.insert(out.pixels.end(), row, row + box.width * image.channels);
  }
  return out;
}

/// Boxes at the corners, of one pixel, and drawn ones.
std::vector<Box> boxes(int64_t width, int64_t height, uint64_t key) {
  std::vector<Box> all = {{0, 0, width, height}, {0, 0, 1, 1}, {width - 1, height - 1, 1, 1}};
  for (uint64_t i = 0; i < 40; ++i) {
    const auto draw = [&](uint64_t index, int64_t bound) {
      return static_cast<int64_t>(random_below(key, 4 * i + index, static_cast<uint64_t>(bound)));
    };
    const int64_t w = 1 + draw(0, width), h = 1 + draw(1, height);
    all.push_back({draw(2, width - w + 1), draw(3, height - h + 1), w, h});
  }
  return all;
}

std::string text(const Box& box) { return concat(box.x, ",", box.y, " ", box.width, " x ", box.height); }

void expect_parts_equal_the_whole(const Bytes& bytes, int64_t width, int64_t height, int64_t max_shrink,
                                  const std::string& what) {
  for (int64_t shrink = 1; shrink <= max_shrink; shrink *= 2) {
    const int64_t w = (width + shrink - 1) / shrink, h = (height + shrink - 1) / shrink;
    const Image whole = read_part(bytes, {0, 0, w, h}, shrink);
    for (const Box& box : boxes(w, h, static_cast<uint64_t>(width))) {
      ASSERT_EQ(read_part(bytes, box, shrink).pixels, cut(whole, box).pixels)
          << what << ", 1/" << shrink << ", " << text(box) << " of " << w << " x " << h;
    }
  }
}

std::map<std::string, JpegKind> kinds() {
  std::map<std::string, JpegKind> all;
  all["4:2:0"] = {};
  all["4:4:4"] = {.across = 1, .down = 1};
  all["4:2:2"] = {.down = 1};
  all["4:4:0"] = {.across = 1};
  all["4:1:1"] = {.across = 4, .down = 1};
  all["gray"] = {.space = JCS_GRAYSCALE, .across = 1, .down = 1};
  all["gray, 2 x 2"] = {.space = JCS_GRAYSCALE};
  all["progressive"] = {.progressive = true};
  all["arithmetic"] = {.arithmetic = true};
  all["arithmetic, progressive"] = {.progressive = true, .arithmetic = true};
  all["YCCK"] = {.space = JCS_CMYK};
  all["restarts"] = {.restart_mcus = 3};
  all["optimised, low quality"] = {.optimised = true, .quality = 40};
  return all;
}

TEST(Region, OfAJpegEqualsTheWhole) {
  for (const auto& [name, kind] : kinds()) {
    for (const auto& [width, height] : std::map<int, int>{{1, 1}, {5, 33}, {16, 16}, {75, 61}, {130, 47}}) {
      expect_parts_equal_the_whole(jpeg(width, height, kind), width, height, 8, name);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(Region, OfAPngEqualsTheWhole) {
  for (const int64_t channels : {1, 3, 4}) {
    const Bytes pixels = picture(31, 22, channels, 40);
    expect_parts_equal_the_whole(encode_png(pixels.data(), 31, 22, channels), 31, 22, 1, "png");
  }
}

TEST(Region, OfAnInterlacedPngEqualsTheWhole) {
  TESSERA_SHARED_OR_SKIP(folder, "odd");
  // PngSuite and others: palettes, 16 bits, transparency.
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".png") continue;
    const std::string file = read_file(entry.path());
    const Bytes bytes(file.begin(), file.end());
    try {
      const Image whole = decode_image(bytes, "png");
      expect_parts_equal_the_whole(bytes, whole.width, whole.height, 1, entry.path().filename().string());
    } catch (const UserError&) {  // a broken one
    }
  }
}

TEST(Region, OfOddJpegsEqualsTheWhole) {
  TESSERA_SHARED_OR_SKIP(folder, "odd");
  int checked = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string(), file = read_file(entry.path());
    const Bytes bytes(file.begin(), file.end());
    if (entry.path().extension() != ".jpg") continue;
    // Damaged inside: what the smooth filling-in of missing coefficients gives depends on what was decoded.
    if (name.find("partial_progressive") != std::string::npos) continue;
    if (name.find("subtract-with-overflow") != std::string::npos) continue;
    try {
      const Image whole = decode_image(bytes, name);
      if (whole.width * whole.height > 1'000'000) continue;
      expect_parts_equal_the_whole(bytes, whole.width, whole.height, 1, name);
      ++checked;
    } catch (const UserError&) {
    }
  }
  EXPECT_GT(checked, 30);
}

TEST(Huffman, DecodesAsLibjpeg) {
  for (const auto& [name, kind] : kinds()) {
    if (kind.space == JCS_CMYK) continue;
    for (const uint64_t noise : {0, 3, 40, 200}) {
      for (const int quality : {20, 75, 92, 100}) {
        JpegKind own = kind;
        own.quality = quality;
        const Bytes bytes = jpeg(83, 59, own, noise);
        EXPECT_EQ(decode_image(bytes, name).pixels, decode_by_libjpeg(bytes)) << name << " " << quality;
      }
    }
  }
}

// What is not well-formed goes through libjpeg's own decoder, from the start.
TEST(Huffman, DamagedFilesLookAsLibjpegShowsThem) {
  int accepted = 0;
  for (const unsigned restart_mcus : {0U, 2U}) {
    const Bytes whole = jpeg(70, 50, {.restart_mcus = restart_mcus});
    size_t scan = 0;
    while (whole[scan] != 0xFF || whole[scan + 1] != 0xDA) ++scan;
    for (uint64_t i = 0; i < 400; ++i) {
      Bytes damaged = whole;
      const size_t at = scan + 14 + random_below(i, 0, whole.size() - scan - 14);
      damaged[at] = static_cast<uint8_t>(random_word(i, 1));
      if (i % 3 == 0) damaged.insert(damaged.begin() + static_cast<std::ptrdiff_t>(at), 0xFF);
      if (i % 7 == 0) damaged.erase(damaged.begin() + static_cast<std::ptrdiff_t>(at));
      const auto expected = decode_by_libjpeg(damaged);
      Bytes found;
      const std::string error = error_text([&] { found = decode_image(damaged, "damaged").pixels; });
      if (error == "no error") {
        EXPECT_EQ(found, expected) << i;
        ++accepted;
      } else if (expected) {
        EXPECT_EQ(
            error,
            "[formats.decode_jpeg] cannot decode the JPEG image damaged: the data end before the last pixel");
      }
    }
  }
  EXPECT_GT(accepted, 350);
}

TEST(Region, DamageBelowItIsNotSeen) {
  for (const auto& kind : {JpegKind(), JpegKind{.arithmetic = true}, JpegKind{.restart_mcus = 2}}) {
    const Bytes whole = jpeg(64, 64, kind, 200);
    const auto cut_off = std::span(whole).first(whole.size() * 2 / 3);
    EXPECT_EQ(read_part(cut_off, {3, 2, 50, 17}, 1).pixels, read_part(whole, {3, 2, 50, 17}, 1).pixels);
    EXPECT_EQ(error_text([&] {
                read_part(cut_off, {3, 40, 50, 24}, 1);
              }),
              "[formats.decode_jpeg] cannot decode the JPEG image part: the data end before the last pixel");
  }
  const Bytes pixels = picture(150, 150, 3, 100), png = encode_png(pixels.data(), 150, 150, 3);
  EXPECT_EQ(read_part(std::span(png).first(png.size() / 2), {5, 0, 9, 8}, 1).pixels,
            read_part(png, {5, 0, 9, 8}, 1).pixels);
}

Bytes exif_of(int orientation, bool big_endian) {
  const auto value = static_cast<uint8_t>(orientation);
  Bytes tiff = {'I',  'I',  42, 0, 8, 0, 0, 0, 2,     0,        // one directory of two entries
                0x0F, 0x01, 2,  0, 1, 0, 0, 0, 'x',   0, 0, 0,  // maker: "x"
                0x12, 0x01, 3,  0, 1, 0, 0, 0, value, 0, 0, 0, 0, 0, 0, 0};
  if (!big_endian) return tiff;
  return {'M', 'M', 0, 42,   0,    0, 0, 8, 0, 2, 0x01, 0x0F, 0,     2, 0, 0, 0, 1, 'x',
          0,   0,   0, 0x01, 0x12, 0, 3, 0, 0, 0, 1,    0,    value, 0, 0, 0, 0, 0, 0};
}

TEST(Exif, Orientation) {
  for (const bool big_endian : {false, true}) {
    for (int orientation = 1; orientation <= 8; ++orientation) {
      const Bytes tiff = exif_of(orientation, big_endian);
      EXPECT_EQ(exif_orientation(tiff), orientation);
      for (size_t size = 0; size + 4 < tiff.size(); ++size) {
        const int cut_off = exif_orientation(std::span(tiff).first(size));
        EXPECT_TRUE(cut_off == 1 || cut_off == orientation);
      }
    }
    EXPECT_EQ(exif_orientation(exif_of(0, big_endian)), 1);
    EXPECT_EQ(exif_orientation(exif_of(9, big_endian)), 1);
  }
  Bytes far = exif_of(6, false);
  far[4] = far[5] = far[6] = far[7] = 0xFF;  // the directory lies beyond any end
  EXPECT_EQ(exif_orientation(far), 1);
}

TEST(Exif, IsReadFromJpegsWhenAskedFor) {
  Bytes marker = {'E', 'x', 'i', 'f', 0, 0};
  const Bytes tiff = exif_of(6, true);
  marker.insert(marker.end(), tiff.begin(), tiff.end());
  const Bytes bytes = jpeg(20, 10, {.exif = marker});
  EXPECT_EQ(open_image(bytes, "photo", {kMaxPixels, true})->header().orientation, 6);
  EXPECT_EQ(open_image(bytes, "photo", {})->header().orientation, 1);
  EXPECT_EQ(open_image(bytes, "photo", {kMaxPixels, true})->header().width, 20);
}

TEST(Exif, OfOddFilesAsPillow) {
  TESSERA_SHARED_OR_SKIP(folder, "odd");
  for (int orientation = 2; orientation <= 8; ++orientation) {
    const std::string file = read_file(folder / concat("pillow__hopper_orientation_", orientation, ".jpg"));
    const auto reader = open_image({reinterpret_cast<const uint8_t*>(file.data()), file.size()}, "hopper",
                                   {kMaxPixels, true});
    EXPECT_EQ(reader->header().orientation, orientation);
  }
  const std::string file = read_file(folder / "pngsuite__exif2c08.png");
  EXPECT_NO_THROW(
      open_image({reinterpret_cast<const uint8_t*>(file.data()), file.size()}, "png", {kMaxPixels, true}));
}

}  // namespace
}  // namespace tessera::formats
