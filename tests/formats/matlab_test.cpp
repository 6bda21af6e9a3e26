// SPDX-License-Identifier: Apache-2.0
#include "tessera/formats/matlab.h"

#include <gtest/gtest.h>

#include "tessera/base/file.h"
#include "tests/error_text.h"

namespace tessera::formats {
namespace {

using MatKind = MatArray::Kind;

std::string fixture(const std::string& name) {
  return read_file(std::string(TESSERA_SOURCE_DIR) + "/tests/prepare/fixtures/imagenet/" + name);
}

std::map<std::string, MatArray> parse(const std::string& bytes, uint64_t limit = uint64_t{1} << 28) {
  return parse_matlab({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}, "x.mat", limit);
}

std::string error_of(const std::string& bytes, uint64_t limit = uint64_t{1} << 28) {
  return error_text([&] { parse(bytes, limit); });
}

TEST(Matlab, AListOfRecordsAsScipyWritesIt) {
  for (const char* name : {"meta_plain.mat", "meta_packed.mat"}) {
    const auto variables = parse(fixture(name));
    ASSERT_EQ(variables.size(), 1U) << name;
    const MatArray& synsets = variables.at("synsets");
    EXPECT_EQ(synsets.kind, MatKind::kStruct);
    EXPECT_EQ(synsets.dims, (std::vector<int64_t>{6, 1}));
    EXPECT_EQ(synsets.fields.size(), 8U);
    const auto& words = synsets.fields.at("words");
    ASSERT_EQ(words.size(), 6U);
    EXPECT_EQ(words[2].kind, MatKind::kText);
    EXPECT_EQ(words[2].text, "tench, Tinca tinca");
    EXPECT_EQ(words[3].text, "chain saw, chainsaw — Kettensäge");
    EXPECT_EQ(synsets.fields.at("ILSVRC2012_ID")[1].numbers, std::vector<double>{2});
    EXPECT_EQ(synsets.fields.at("children")[5].numbers, (std::vector<double>{1, 2, 3, 4}));
    EXPECT_TRUE(synsets.fields.at("children")[0].numbers.empty());
  }
}

TEST(Matlab, EveryTruncationIsAnError) {
  for (const char* name : {"meta_plain.mat", "meta_packed.mat"}) {
    const std::string whole = fixture(name);
    for (size_t size = 0; size < whole.size(); size += size < 200 ? 1 : 7) {
      if (size == 128) continue;  // a file without variables
      EXPECT_TRUE(error_of(whole.substr(0, size)).starts_with("[formats.matlab] ")) << name << " of " << size;
    }
    EXPECT_TRUE(parse(whole.substr(0, 128)).empty());
  }
}

TEST(Matlab, Errors) {
  const std::string plain = fixture("meta_plain.mat"), packed = fixture("meta_packed.mat");
  EXPECT_EQ(error_of("<html>"), "[formats.matlab] not a MATLAB file of level 5, little-endian (x.mat)");
  std::string big_endian = plain;
  std::swap(big_endian[126], big_endian[127]);
  EXPECT_EQ(error_of(big_endian), error_of("<html>"));
  EXPECT_EQ(error_of(packed, 100), "[formats.matlab] the unpacked data are above the limit (x.mat)");
  std::string damaged = packed;
  damaged[300] = static_cast<char>(damaged[300] ^ 0x55);
  EXPECT_EQ(error_of(damaged), "[formats.matlab] packed data are damaged or cut off (x.mat)");
  EXPECT_EQ(error_of(plain.substr(0, 132)),
            "[formats.matlab] 4 bytes are left (x.mat): expected a tag of 8 bytes");
}

TEST(Matlab, SmallNumbersMeanDoublesToo) {
  // A double array [[1, 3], [2, 4]] named "a", its values stored as bytes in a small element.
  std::string file(116, ' ');
  file += std::string(8, '\0') + std::string("\0\1IM", 4);
  const std::string body = std::string("\6\0\0\0\10\0\0\0\6\0\0\0\0\0\0\0", 16) +
                           std::string("\5\0\0\0\10\0\0\0\2\0\0\0\2\0\0\0", 16) +
                           std::string("\1\0\1\0a\0\0\0", 8) + std::string("\2\0\4\0\1\2\3\4", 8);
  file += std::string("\16\0\0\0\60\0\0\0", 8) + body;
  const auto variables = parse(file);
  ASSERT_TRUE(variables.contains("a"));
  EXPECT_EQ(variables.at("a").dims, (std::vector<int64_t>{2, 2}));
  EXPECT_EQ(variables.at("a").numbers, (std::vector<double>{1, 2, 3, 4}));
}

}  // namespace
}  // namespace tessera::formats
