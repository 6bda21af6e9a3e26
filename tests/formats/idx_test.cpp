// SPDX-License-Identifier: Apache-2.0
#include "tessera/formats/idx.h"

#include <gtest/gtest.h>

#include "tests/error_text.h"

namespace tessera::formats {
namespace {

std::string file(std::initializer_list<int> bytes) {
  std::string out;
  for (const int byte : bytes) out.push_back(static_cast<char>(byte));
  return out;
}

TEST(Idx, SizesAreBigEndian) {
  const Idx idx = parse_idx(file({0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 3, 1, 2, 3, 4, 5, 255}), "a");
  EXPECT_EQ(idx.dims, (std::vector<int64_t>{2, 1, 3}));
  ASSERT_EQ(idx.values().size(), 6U);
  EXPECT_EQ(idx.values()[0], 1);
  EXPECT_EQ(idx.values()[5], 255);
  std::string large = file({0, 0, 8, 1, 0, 1, 2, 0});
  large.resize(8 + 0x10200);
  EXPECT_EQ(parse_idx(large, "a").dims, (std::vector<int64_t>{0x10200}));
}

TEST(Idx, NoElements) {
  const Idx idx = parse_idx(file({0, 0, 8, 1, 0, 0, 0, 0}), "a");
  EXPECT_TRUE(idx.values().empty());
}

TEST(Idx, Errors) {
  const auto error = [](std::initializer_list<int> bytes) {
    return error_text([&] { parse_idx(file(bytes), "f"); });
  };
  EXPECT_EQ(error({}), "[formats.parse_idx] an idx file: found only 0 bytes (f)");
  EXPECT_EQ(error({1, 2, 8, 1}),
            "[formats.parse_idx] an idx file, which starts with two zero bytes: found 1 and 2 (f)");
  EXPECT_EQ(error({0, 0, 13, 1}),
            "[formats.parse_idx] an idx file of unsigned bytes (type 8): found type 13 (f)");
  EXPECT_EQ(error({0, 0, 8, 0}), "[formats.parse_idx] an idx file of 1 to 4 dimensions: found 0 (f)");
  EXPECT_EQ(error({0, 0, 8, 5}), "[formats.parse_idx] an idx file of 1 to 4 dimensions: found 5 (f)");
  EXPECT_EQ(error({0, 0, 8, 2, 0, 0, 0, 1}),
            "[formats.parse_idx] an idx header of 12 bytes: found 8 (f; it is cut off)");
  EXPECT_EQ(error({0, 0, 8, 1, 0, 0, 0, 3, 1, 2}),
            "[formats.parse_idx] an idx file of 3 bytes: found 2 bytes of data (f; it is cut off)");
  EXPECT_EQ(
      error({0, 0, 8, 1, 0, 0, 0, 1, 1, 2}),
      "[formats.parse_idx] an idx file of 1 bytes: found 2 bytes of data (f; something follows its end)");
  // 2^32-1 to the fourth: the product overflows.
  EXPECT_EQ(
      error({0, 0, 8, 3, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255}),
      "[formats.parse_idx] an idx file of 4294967295 x 4294967295 x 4294967295 bytes: found 0 bytes of data "
      "(f; it is cut off)");
}

}  // namespace
}  // namespace tessera::formats
