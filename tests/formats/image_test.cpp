// SPDX-License-Identifier: Apache-2.0
#include "tessera/formats/image.h"

#include <gtest/gtest.h>
#include <png.h>
#include <zlib.h>

#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "tessera/base/file.h"
#include "tessera/formats/png.h"
#include "tests/data/shared_data.h"
#include "tests/error_text.h"
#include "tests/formats/jpeg_maker.h"
#include "tests/process_memory.h"

namespace tessera::formats {
namespace {

Bytes gradient(int64_t width, int64_t height, int64_t channels) {
  Bytes pixels;
  for (int64_t y = 0; y < height; ++y) {
    for (int64_t x = 0; x < width; ++x) {
      for (int64_t c = 0; c < channels; ++c) pixels.push_back(static_cast<uint8_t>(4 * x + 2 * y + 40 * c));
    }
  }
  return pixels;
}

Bytes encode_jpeg(const Bytes& pixels, int width, int height, J_COLOR_SPACE space, bool progressive) {
  JpegKind kind;
  kind.space = space;
  kind.progressive = progressive;
  if (space == JCS_GRAYSCALE) kind.across = kind.down = 1;
  return encode_jpeg(pixels, width, height, kind);
}

void expect_near(const Bytes& found, const Bytes& expected, int tolerance) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) ASSERT_NEAR(found[i], expected[i], tolerance) << i;
}

TEST(Jpeg, GrayColourProgressive) {
  for (const bool progressive : {false, true}) {
    const Image gray =
        decode_image(encode_jpeg(gradient(21, 17, 1), 21, 17, JCS_GRAYSCALE, progressive), "g");
    EXPECT_EQ(gray.channels, 1);
    expect_near(gray.pixels, gradient(21, 17, 1), 4);
    const Image colour = decode_image(encode_jpeg(gradient(21, 17, 3), 21, 17, JCS_RGB, progressive), "c");
    EXPECT_EQ(colour.width, 21);
    EXPECT_EQ(colour.height, 17);
    EXPECT_EQ(colour.channels, 3);
    expect_near(colour.pixels, gradient(21, 17, 3), 12);
  }
}

TEST(Jpeg, CmykIsInverted) {
  Bytes cmyk;  // one colour: 200/255 of the paper's red, ... under a key of 128
  for (int i = 0; i < 64; ++i) cmyk.insert(cmyk.end(), {200, 100, 50, 128});
  const Image image = decode_image(encode_jpeg(cmyk, 8, 8, JCS_CMYK, false), "cmyk");
  EXPECT_EQ(image.channels, 3);
  ASSERT_EQ(image.pixels.size(), 192U);
  EXPECT_NEAR(image.pixels[0], 200 * 128 / 255, 2);
  EXPECT_NEAR(image.pixels[1], 100 * 128 / 255, 2);
  EXPECT_NEAR(image.pixels[2], 50 * 128 / 255, 2);
}

TEST(Jpeg, TruncationIsAnErrorButAMissingEndMarkerIsNot) {
  Bytes noise(64 * 64 * 3);
  uint32_t state = 7;
  for (auto& byte : noise) byte = static_cast<uint8_t>((state = state * 1664525U + 1013904223U) >> 24);
  for (const bool progressive : {false, true}) {
    const Bytes whole = encode_jpeg(noise, 64, 64, JCS_RGB, progressive);
    for (size_t size = 3; size + 40 < whole.size(); size += 97) {
      EXPECT_THROW(decode_image(std::span(whole).first(size), "cut.jpg"), UserError) << size;
    }
    const auto without_end = std::span(whole).first(whole.size() - 2);
    if (progressive) {
      EXPECT_THROW(decode_image(without_end, "cut.jpg"), UserError);
    } else {
      EXPECT_EQ(decode_image(without_end, "cut.jpg").pixels, decode_image(whole, "whole.jpg").pixels);
    }
  }
  const Bytes whole = encode_jpeg(noise, 64, 64, JCS_RGB, false);
  EXPECT_EQ(
      error_text([&] { decode_image(std::span(whole).first(whole.size() / 2), "dir/cut.jpg"); }),
      "[formats.decode_jpeg] cannot decode the JPEG image dir/cut.jpg: the data end before the last pixel");
}

TEST(Jpeg, BombsAreRefusedByTheirHeader) {
  Bytes bytes = encode_jpeg(gradient(8, 8, 1), 8, 8, JCS_GRAYSCALE, false);
  for (size_t i = 0; i + 8 < bytes.size(); ++i) {
    if (bytes[i] != 0xFF || bytes[i + 1] != 0xC0) continue;
    bytes[i + 5] = bytes[i + 6] = bytes[i + 7] = bytes[i + 8] = 0xFF;  // height and width
    break;
  }
  const std::string text = error_text([&] { decode_image(bytes, "bomb.jpg"); });
  // libjpeg itself refuses more than 65,500; 65,500 x 65,500 is ours to refuse.
  EXPECT_EQ(text,
            "[formats.decode_jpeg] cannot decode the JPEG image bomb.jpg: Maximum supported image dimension "
            "is 65500 pixels");
  EXPECT_EQ(error_text([&] {
              decode_image(encode_jpeg(gradient(20, 20, 1), 20, 20, JCS_GRAYSCALE, false), "b", 399);
            }),
            "[formats.decode_jpeg] b is an image of 20 x 20 pixels: expected 1 to 399 pixels");
}

TEST(Png, EncoderAndDecoderAgree) {
  for (const int64_t channels : {1, 3}) {
    for (const auto& [width, height] : std::map<int64_t, int64_t>{{1, 1}, {17, 5}, {64, 64}}) {
      const Bytes pixels = gradient(width, height, channels);
      const Image image = decode_image(encode_png(pixels.data(), width, height, channels), "p");
      EXPECT_EQ(image.width, width);
      EXPECT_EQ(image.height, height);
      EXPECT_EQ(image.channels, channels);
      EXPECT_EQ(image.pixels, pixels);
    }
  }
  const Bytes transparent = {10, 20, 30, 0, 40, 50, 60, 255};
  EXPECT_EQ(decode_image(encode_png(transparent.data(), 2, 1, 4), "p").pixels,
            (Bytes{10, 20, 30, 40, 50, 60}));
}

/// A PNG of `rows` as they are stored in the file.
Bytes write_png(int width, int height, int depth, int type, bool interlaced, const std::vector<Bytes>& rows,
                const std::vector<png_color>& palette) {
  Bytes out;
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  png_set_write_fn(
      png, &out,
      [](png_structp p, png_bytep data, size_t size) {
        auto* bytes = static_cast<Bytes*>(png_get_io_ptr(p));
        bytes->insert(bytes->end(), data, data + size);
      },
      nullptr);
  png_set_IHDR(png, info, static_cast<uint32_t>(width), static_cast<uint32_t>(height), depth, type,
               interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT,
               PNG_FILTER_TYPE_DEFAULT);
  if (!palette.empty()) png_set_PLTE(png, info, palette.data(), static_cast<int>(palette.size()));
  png_write_info(png, info);
  const int passes = png_set_interlace_handling(png);
  for (int pass = 0; pass < passes; ++pass) {
    for (const auto& row : rows) png_write_row(png, row.data());
  }
  png_write_end(png, nullptr);
  png_destroy_write_struct(&png, &info);
  return out;
}

TEST(Png, PaletteDepthsInterlacing) {
  const std::vector<png_color> palette = {{1, 2, 3}, {4, 5, 6}, {7, 8, 9}};
  for (const bool interlaced : {false, true}) {
    // Two bits a pixel: 2 1 0 | 1 2 2.
    const Image colours = decode_image(
        write_png(3, 2, 2, PNG_COLOR_TYPE_PALETTE, interlaced, {{0b10010000}, {0b01101000}}, palette), "p");
    EXPECT_EQ(colours.channels, 3);
    EXPECT_EQ(colours.pixels, (Bytes{7, 8, 9, 4, 5, 6, 1, 2, 3, 4, 5, 6, 7, 8, 9, 7, 8, 9}));
    const Image bits =
        decode_image(write_png(3, 1, 1, PNG_COLOR_TYPE_GRAY, interlaced, {{0b10100000}}, {}), "p");
    EXPECT_EQ(bits.pixels, (Bytes{255, 0, 255}));
    const Image deep = decode_image(
        write_png(2, 1, 16, PNG_COLOR_TYPE_GRAY, interlaced, {{0x12, 0xFF, 0xFF, 0x00}}, {}), "p");
    EXPECT_EQ(deep.pixels, (Bytes{0x12, 0xFF}));
    const Image deep_alpha = decode_image(
        write_png(1, 1, 16, PNG_COLOR_TYPE_RGB_ALPHA, interlaced, {{1, 9, 2, 9, 3, 9, 0, 9}}, {}), "p");
    EXPECT_EQ(deep_alpha.pixels, (Bytes{1, 2, 3}));
    const Image gray_alpha =
        decode_image(write_png(2, 1, 8, PNG_COLOR_TYPE_GRAY_ALPHA, interlaced, {{50, 0, 60, 255}}, {}), "p");
    EXPECT_EQ(gray_alpha.channels, 1);
    EXPECT_EQ(gray_alpha.pixels, (Bytes{50, 60}));
  }
}

TEST(Png, Errors) {
  const Bytes pixels = gradient(32, 32, 3);
  const Bytes whole = encode_png(pixels.data(), 32, 32, 3);
  for (size_t size = 8; size + 16 < whole.size(); ++size) {
    EXPECT_THROW(decode_image(std::span(whole).first(size), "cut.png"), UserError) << size;
  }
  EXPECT_EQ(error_text([&] { decode_image(std::span(whole).first(whole.size() / 2), "cut.png"); }),
            "[formats.decode_png] cannot decode the PNG image cut.png: the data end before the last pixel");
  Bytes damaged = whole;
  damaged[damaged.size() - 20] ^= 1;
  EXPECT_THROW(decode_image(damaged, "damaged.png"), UserError);
  EXPECT_EQ(error_text([&] { decode_image(whole, "big.png", 1023); }),
            "[formats.decode_png] big.png is an image of 32 x 32 pixels: expected 1 to 1,023 pixels");
}

TEST(Image, WhatIsNone) {
  EXPECT_EQ(error_text([] { decode_image({}, "a.jpg"); }),
            "[formats.decode_image] a.jpg is empty: expected a JPEG or PNG image");
  const Bytes text = {'h', 'e', 'l', 'l', 'o'};
  EXPECT_EQ(error_text([&] { decode_image(text, "a.jpg"); }),
            "[formats.decode_image] a.jpg starts with the bytes 68 65 6c 6c: expected a JPEG or PNG image");
}

TEST(Image, Channels) {
  const Image gray = convert_channels({2, 1, 3, {255, 0, 0, 10, 200, 30}}, 1);
  EXPECT_EQ(gray.pixels, (Bytes{76, 124}));  // Pillow: Image.new("RGB", ...).convert("L")
  EXPECT_EQ(convert_channels(gray, 3).pixels, (Bytes{76, 76, 76, 124, 124, 124}));
}

Bytes of_hex(const std::string& text) {
  Bytes bytes;
  for (size_t i = 0; i < text.size(); i += 2) {
    bytes.push_back(static_cast<uint8_t>(std::stoi(text.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

// docs/data.md, "Broken image streams", says why. Pillow's verdict is make_stream_fixture.py's to check.
TEST(Image, BrokenStreamsAreAcceptedAsDocumented) {
  const auto fixture =
      nlohmann::json::parse(read_file(TESSERA_SOURCE_DIR "/tests/formats/fixtures/streams.json"));
  std::map<std::string, Bytes> sound;
  int refused = 0;
  for (const auto& stream : fixture.at("streams")) {
    const std::string group = stream.at("group"), name = stream.at("name");
    SCOPED_TRACE(group + ": " + name);
    Image image;
    const std::string error = error_text([&] {
      image = convert_channels(decode_image(of_hex(stream.at("bytes").get<std::string>()), "s"), 3);
    });
    EXPECT_EQ(error == "no error" ? "ok" : "refused", stream.at("tessera")) << error;
    refused += error == "no error" ? 0 : 1;
    if (group == "sound") sound[name] = image.pixels;
    if (error != "no error" || group.starts_with("JPEG")) continue;
    EXPECT_EQ(image.pixels, sound.at(group == "sound" ? name : "plain"));
    const Bytes pillow = of_hex(stream.at("rgb").get<std::string>());
    if (!pillow.empty()) {
      EXPECT_EQ(image.pixels, pillow);
    }
  }
  EXPECT_GT(refused, 30);
}

// 30 text chunks of 8 kB that unpack to 8 MB each.
TEST(Png, TextThatUnpacksToMuchTakesNoMemory) {
  if (testing::kSanitized) GTEST_SKIP() << "a sanitizer holds memory of its own";
  const Bytes pixels = gradient(16, 16, 3);
  const std::string text(7'900'000, 'x');
  Bytes file;
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  png_set_write_fn(
      png, &file,
      [](png_structp p, png_bytep data, size_t size) {
        auto* bytes = static_cast<Bytes*>(png_get_io_ptr(p));
        bytes->insert(bytes->end(), data, data + size);
      },
      nullptr);
  png_set_IHDR(png, info, 16, 16, 8, PNG_COLOR_TYPE_RGB, PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT,
               PNG_FILTER_TYPE_DEFAULT);
  png_write_info(png, info);
  for (int y = 0; y < 16; ++y) png_write_row(png, pixels.data() + size_t{48} * static_cast<size_t>(y));
  png_write_end(png, nullptr);
  png_destroy_write_struct(&png, &info);
  // zTXt after IHDR, 33 bytes from the start: keyword, zero, method 0, a zlib stream.
  uLongf packed_size = compressBound(text.size());
  Bytes chunk(4 + 4 + 5 + packed_size);
  std::memcpy(chunk.data() + 4, "zTXtkey\0", 9);
  compress(chunk.data() + 13, &packed_size, reinterpret_cast<const Bytef*>(text.data()), text.size());
  const auto put = [](uint8_t* out, uint64_t value) {
    for (int i = 0; i < 4; ++i) out[i] = static_cast<uint8_t>(value >> (24 - 8 * i));
  };
  put(chunk.data(), 5 + packed_size);
  chunk.resize(4 + 4 + 5 + packed_size + 4);
  put(chunk.data() + chunk.size() - 4, crc32(0, chunk.data() + 4, static_cast<uInt>(chunk.size() - 8)));
  for (int i = 0; i < 30; ++i) file.insert(file.begin() + 33, chunk.begin(), chunk.end());
  ASSERT_LT(file.size(), size_t{1} << 20);
  Image image;
  const int64_t peak = testing::peak_above_idle([&] { image = decode_image(file, "p"); });
  EXPECT_EQ(image.pixels, pixels);
  EXPECT_LT(peak, 8 << 20);
}

// The files that others found odd, against what Pillow says of them.
TEST(Image, OddFilesAsPillow) {
  TESSERA_SHARED_OR_SKIP(folder, "odd");
  const auto cases = nlohmann::json::parse(read_file(folder / "expected.json"));
  for (const auto& entry : cases) {
    const std::string name = entry.at("file");
    const bool accepted = entry.at("pillow") == "ok";
    const std::string bytes = read_file(folder / name);
    Image image;
    const std::string error = error_text([&] {
      image = decode_image({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}, name);
    });
    const bool ours = error == "no error";
    EXPECT_EQ(ours, accepted) << name << ": " << error << " but Pillow: " << entry.at("pillow");
    if (!ours || !accepted) continue;
    EXPECT_EQ(image.width, entry.at("size")[0]) << name;
    EXPECT_EQ(image.height, entry.at("size")[1]) << name;
    const Image rgb = convert_channels(image, 3);
    for (size_t c = 0; c < 3; ++c) {
      double sum = 0;
      for (size_t i = c; i < rgb.pixels.size(); i += 3) sum += rgb.pixels[i];
      EXPECT_NEAR(sum / static_cast<double>(rgb.width * rgb.height), entry.at("rgb_mean")[c], 0.5) << name;
    }
  }
}

}  // namespace
}  // namespace tessera::formats
