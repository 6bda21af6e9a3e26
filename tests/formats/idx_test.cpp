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
  EXPECT_EQ(error({}), "[formats.parse_idx] f is not an idx file: it has only 0 bytes");
  EXPECT_EQ(
      error({1, 2, 8, 1}),
      "[formats.parse_idx] f is not an idx file: it starts with the bytes 1 and 2: expected two zero bytes");
  EXPECT_EQ(error({0, 0, 13, 1}),
            "[formats.parse_idx] f is an idx file of type 13: expected unsigned bytes (type 8)");
  EXPECT_EQ(error({0, 0, 8, 0}), "[formats.parse_idx] f is an idx file of 0 dimensions: expected 1 to 4");
  EXPECT_EQ(error({0, 0, 8, 5}), "[formats.parse_idx] f is an idx file of 5 dimensions: expected 1 to 4");
  EXPECT_EQ(error({0, 0, 8, 2, 0, 0, 0, 1}),
            "[formats.parse_idx] f is cut off: it has 8 bytes: expected an idx header of 12 bytes");
  EXPECT_EQ(error({0, 0, 8, 1, 0, 0, 0, 3, 1, 2}),
            "[formats.parse_idx] f is cut off: it has 2 bytes of data: expected 3 bytes");
  EXPECT_EQ(error({0, 0, 8, 1, 0, 0, 0, 1, 1, 2}),
            "[formats.parse_idx] f is too long: it has 2 bytes of data: expected 1 bytes");
  // 2^32-1 to the fourth: the product overflows.
  EXPECT_EQ(error({0, 0, 8, 3, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255}),
            "[formats.parse_idx] f is cut off: it has 0 bytes of data: expected 4294967295 x 4294967295 x "
            "4294967295 bytes");
}

}  // namespace
}  // namespace tessera::formats
