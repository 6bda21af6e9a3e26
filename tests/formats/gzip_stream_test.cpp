// SPDX-License-Identifier: Apache-2.0
#include "tessera/formats/gzip_stream.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <fstream>
#include <vector>

#include "tessera/base/file.h"
#include "tessera/base/random.h"
#include "tests/error_text.h"

namespace tessera::formats {
namespace {

std::string gzip(const std::string& text, int level) {
  z_stream stream = {};
  deflateInit2(&stream, level, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  std::string out(deflateBound(&stream, text.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(out.size() - stream.avail_out);
  deflateEnd(&stream);
  return out;
}

/// Half of it repeats, half is noise.
std::string sample_bytes(size_t size) {
  std::string text;
  for (uint64_t block = 0; text.size() < size; ++block) {
    for (const uint32_t word : philox(7, block)) {
      text += static_cast<char>(word);
      text += block % 64 < 32 ? "repeated" : std::string(1, static_cast<char>(word >> 8));
    }
  }
  text.resize(size);
  return text;
}

class GzipStreamTest : public ::testing::Test {
 protected:
  void write(const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

  struct Point {
    RestartPoint point;
    std::string window;
  };
  std::string unpack(const FileReader& file, uint64_t span, std::vector<Point>* points) {
    GzipStream stream(file, span, [&](const RestartPoint& point, std::span<const std::byte> window) {
      points->push_back({point, std::string(reinterpret_cast<const char*>(window.data()), window.size())});
    });
    std::string text;
    while (true) {
      const std::string piece = read_text(stream, 1000);
      text += piece;
      if (piece.size() < 1000) return text;
    }
  }
  const TemporaryFolder folder{"tessera-gzip"};
  const std::filesystem::path path = folder.path() / "x.gz";
};

TEST_F(GzipStreamTest, AnyPlaceFromThePointBeforeIt) {
  const std::string one = sample_bytes(700'000), two = sample_bytes(300'000);
  for (const int level : {0, 1, 6, 9}) {
    write(gzip(one, level) + gzip("", level) + gzip(two, level) + std::string(100, '\0'));
    const FileReader file(path);
    EXPECT_TRUE(is_gzip_file(file));
    std::vector<Point> points;
    const std::string all = one + two;
    ASSERT_EQ(unpack(file, 50'000, &points), all);
    EXPECT_GT(points.size(), 10U);
    EXPECT_LT(points.size(), 30U);
    for (uint64_t draw = 0; draw < 60; ++draw) {
      const auto offset = static_cast<size_t>(random_below(1, draw, all.size()));
      const auto size =
          std::min<size_t>(all.size() - offset, static_cast<size_t>(random_below(2, draw, 200'000)));
      size_t before = points.size();
      while (points[--before].point.unpacked > offset) {
      }
      const Point& from = points[before];
      std::string bytes(size, '\0');
      read_gzip_at(file, from.point, std::as_bytes(std::span(from.window)), offset,
                   std::as_writable_bytes(std::span(bytes)));
      EXPECT_TRUE(bytes == all.substr(offset, size)) << level << " " << offset << " " << size;
    }
  }
}

TEST_F(GzipStreamTest, SkipCountsWhatThereIs) {
  write(gzip(sample_bytes(100'000), 6));
  const FileReader file(path);
  GzipStream stream(file, 1 << 20, {});
  EXPECT_EQ(stream.skip(60'000), 60'000U);
  EXPECT_EQ(read_text(stream, 5), sample_bytes(100'000).substr(60'000, 5));
  EXPECT_EQ(stream.skip(60'000), 39'995U);
  EXPECT_EQ(stream.position(), 100'000U);
}

TEST_F(GzipStreamTest, EveryCutAndDamageIsAnError) {
  const std::string packed = gzip(sample_bytes(3000), 6);
  for (size_t size = 2; size < packed.size(); size += 11) {
    write(packed.substr(0, size));
    const FileReader file(path);
    std::vector<Point> points;
    EXPECT_THROW(unpack(file, 100, &points), UserError) << size;
  }
  std::string damaged = packed;
  damaged[damaged.size() - 6] = static_cast<char>(damaged[damaged.size() - 6] + 1);
  std::vector<Point> points;
  const auto error = [&](const std::string& bytes) {
    write(bytes);
    const FileReader file(path);
    return error_text([&] { unpack(file, 100, &points); });
  };
  EXPECT_EQ(error(damaged),
            concat("[formats.gzip] ", path.string(),
                   " is damaged after 3000 unpacked bytes: incorrect data check; fetch it again"));
  EXPECT_EQ(error(packed.substr(0, 12)),
            concat("[formats.gzip] ", path.string(),
                   " is damaged after 0 unpacked bytes: it is cut off; fetch it again"));
  EXPECT_EQ(error(packed + "other"),
            concat("[formats.gzip] ", path.string(),
                   " is damaged after 3000 unpacked bytes: 5 other bytes follow its end; fetch it again"));
}

TEST_F(GzipStreamTest, WhatIsBeyondTheEndIsAnError) {
  write(gzip("text", 6));
  const FileReader file(path);
  std::string bytes(10, '\0');
  EXPECT_EQ(error_text([&] { read_gzip_at(file, {}, {}, 0, std::as_writable_bytes(std::span(bytes))); }),
            concat("[formats.gzip] ", path.string(),
                   " is damaged after 4 unpacked bytes: it ends; fetch it again"));
}

}  // namespace
}  // namespace tessera::formats
