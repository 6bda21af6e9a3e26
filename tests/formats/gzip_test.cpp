// SPDX-License-Identifier: Apache-2.0
#include "tessera/formats/gzip.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <zlib.h>

#include "tests/error_text.h"

namespace tessera::formats {
namespace {

std::string gzipped(const std::string& text, const char* name = nullptr) {
  z_stream stream = {};
  EXPECT_EQ(deflateInit2(&stream, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
  gz_header header = {};
  header.name = reinterpret_cast<Bytef*>(const_cast<char*>(name));
  if (name != nullptr) deflateSetHeader(&stream, &header);
  std::string out(deflateBound(&stream, text.size()) + 100, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

std::string sample_text(size_t size) {
  std::string text(size, '\0');
  uint32_t state = 1;
  for (auto& c : text) c = static_cast<char>((state = state * 1664525U + 1013904223U) >> 28);
  return text;
}

TEST(Gunzip, WithAndWithoutAName) {
  for (const size_t size : {0, 1, 100, 300000}) {
    const std::string text = sample_text(size);
    EXPECT_EQ(gunzip(gzipped(text), "a.gz"), text);
    EXPECT_EQ(gunzip(gzipped(text, "train-images-idx3-ubyte"), "a.gz"), text);
  }
}

TEST(Gunzip, PlainFilesPassThrough) {
  for (const std::string text : {"", "\x1f", "plain"}) EXPECT_EQ(gunzip(text, "a"), text);
}

TEST(Gunzip, SeveralMembersAndPadding) {
  EXPECT_EQ(gunzip(gzipped("one ") + gzipped("two") + std::string(512, '\0'), "a.gz"), "one two");
}

int64_t peak_memory() {  // KiB
  rusage usage = {};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

TEST(Gunzip, ASizeThatIsAskedForIsNotTakenBeforeItComes) {
  std::string packed = gzipped(sample_text(4 << 20));
  packed.replace(packed.size() - 4, 4, "\xff\xff\xff\xff");
  const int64_t before = peak_memory();
  EXPECT_THROW(gunzip(packed, "a.gz"), UserError);
  EXPECT_LT(peak_memory() - before, 256 << 10) << "KiB";
}

TEST(Gunzip, MoreThanTheUsualRatio) {
  const std::string text(3'000'000, 'x');
  EXPECT_EQ(gunzip(gzipped(text), "a.gz"), text);
}

TEST(Gunzip, EveryTruncationIsAnError) {
  const std::string packed = gzipped(sample_text(2000), "name");
  for (size_t size = 2; size < packed.size(); ++size) {
    EXPECT_THROW(gunzip(packed.substr(0, size), "a.gz"), UserError) << size;
  }
  EXPECT_EQ(error_text([&] { gunzip(packed.substr(0, 15), "t10k.gz"); }),
            "[formats.gunzip] t10k.gz is cut off: its data end after 0 unpacked bytes; fetch it again");
}

TEST(Gunzip, DamageIsAnError) {
  std::string packed = gzipped("some text that is checked");
  packed[packed.size() - 6] = static_cast<char>(packed[packed.size() - 6] + 1);  // in the checksum
  EXPECT_EQ(error_text([&] { gunzip(packed, "a.gz"); }),
            "[formats.gunzip] a.gz is damaged: incorrect data check after 25 unpacked bytes; fetch it again");
  EXPECT_EQ(error_text([&] { gunzip(gzipped("x") + "garbage", "a.gz"); }),
            "[formats.gunzip] a.gz has 7 other bytes after its gzip data");
}

TEST(Gunzip, BombsAreRefused) {
  const std::string packed = gzipped(std::string(1 << 20, 'a'));
  EXPECT_EQ(error_text([&] { gunzip(packed, "bomb.gz", 1 << 16); }),
            "[formats.gunzip] bomb.gz is too large unpacked: expected at most 64.00 KiB");
  EXPECT_EQ(gunzip(packed, "bomb.gz", 1 << 20).size(), size_t{1} << 20);
}

}  // namespace
}  // namespace tessera::formats
