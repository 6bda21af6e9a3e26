// SPDX-License-Identifier: Apache-2.0
#include "tessera/prepare/naming.h"

#include <gtest/gtest.h>

#include "tests/prepare/memory_source.h"

namespace tessera::prepare {
namespace {

TEST(Naming, ClassesKeepTheirNamesWhereTheOrderAllowsIt) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(class_folders({"cat", "dog"}), (Names{"cat", "dog"}));
  EXPECT_EQ(class_folders({"2", "10"}), (Names{"0000_2", "0001_10"})) << "10 sorts before 2";
  EXPECT_EQ(class_folders({"Ankle boot", "T-shirt/top"}), (Names{"0000_Ankle boot", "0001_T-shirt_top"}));
  EXPECT_EQ(class_folders({"a", "a"}), (Names{"0000_a", "0001_a"}));
  EXPECT_EQ(class_folders({"", ".."}), (Names{"0000__", "0001__.."}));
}

TEST(Naming, KeysAreStemsWhereTheyAreUnique) {
  MemorySource source({"cat", "dog"});
  source.add("train/cat/a.b 1.JPEG", 0, "");
  source.add("train/dog/photo", 1, "");
  source.add("images.gz[17]", 1, "");
  source.add("shard.tar:deep/x.png", 1, "");
  const Naming naming(source);
  EXPECT_EQ(naming.key(0), "a_b_1");
  EXPECT_EQ(naming.path(0, "jpg"), "cat/a.b 1.JPEG");
  EXPECT_EQ(naming.key(1), "photo");
  EXPECT_EQ(naming.path(1, "jpg"), "dog/photo.jpg");
  EXPECT_EQ(naming.key(2), "00000017");
  EXPECT_EQ(naming.path(2, "png"), "dog/00000017.png");
  EXPECT_EQ(naming.path(3, "png"), "dog/x.png");
}

TEST(Naming, TheClassAndThenANumberTellTheOthersApart) {
  MemorySource source({"cat", "dog"});
  source.add("train/cat/1.jpg", 0, "");
  source.add("train/dog/1.jpg", 1, "");
  EXPECT_EQ(Naming(source).key(1), "dog_1");
  EXPECT_EQ(Naming(source).path(1, "jpg"), "dog/1.jpg");
  source.add("train/dog/1.png", 1, "");
  EXPECT_EQ(Naming(source).key(2), "00000002");
  EXPECT_EQ(Naming(source).path(2, "png"), "dog/00000002_1.png");
  MemorySource longer({"cat"});
  longer.add(std::string(200, 'x') + ".jpg", 0, "");
  EXPECT_EQ(Naming(longer).key(0), "00000000");
}

TEST(Naming, ABrokenSampleNeedsNoLabel) {
  MemorySource source({"cat"});
  source.add("train/cat/1.jpg", -1, "");
  source.add("train/cat/1.jpg", 0, "");
  EXPECT_EQ(Naming(source).key(1), "cat_1");
}

}  // namespace
}  // namespace tessera::prepare
