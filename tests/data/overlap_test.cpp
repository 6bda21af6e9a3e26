// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/overlap.h"

#include <gtest/gtest.h>

#include "tessera/data/split.h"
#include "tests/data/archives.h"
#include "tests/data/folder_maker.h"

namespace tessera::data {
namespace {
namespace fs = std::filesystem;

class OverlapTest : public Archives {
 protected:
  std::unique_ptr<Source> splits(const std::string& spec, const std::string& names) const {
    return open_splits(spec, names, options);
  }
};

/// The number of common samples is known from the bounds.
TEST_F(OverlapTest, SlicesShareWhatTheirBoundsSay) {
  const fs::path root = temporary.path() / "set";
  for (uint8_t i = 0; i < 20; ++i) {
    write_image(root / "train" / (i % 2 == 0 ? "a" : "b") / (std::to_string(i) + ".png"), i);
    write_image(root / "val" / (i % 2 == 0 ? "a" : "b") / (std::to_string(i) + ".png"), i);
  }
  const auto common = [&](const std::string& train, const std::string& val) {
    return find_overlap(*splits("folder:" + root.string(), train), *splits("folder:" + root.string(), val))
        .samples;
  };
  EXPECT_EQ(common("train", "val"), 0) << "equal names, other files";
  EXPECT_EQ(common("train", "train"), 20);
  EXPECT_EQ(common("train[:80%]", "train[80%:]"), 0);
  EXPECT_EQ(common("train[:80%]", "train[70%:]"), 2);
  EXPECT_EQ(common("train+val", "val[:5]"), 5);
  EXPECT_EQ(common("train[:5]+val[5:]", "val[:5]"), 0);
}

TEST_F(OverlapTest, LinkedFoldersAreTheSameFiles) {
  const fs::path root = temporary.path() / "set";
  write_image(root / "train" / "a" / "1.png", 1);
  write_image(root / "train" / "b" / "2.png", 2);
  fs::create_directory_symlink("train", root / "val");
  const Overlap overlap =
      find_overlap(*open("folder:" + root.string()), *open("folder:" + root.string(), "val"));
  EXPECT_EQ(overlap.samples, 2);
  EXPECT_EQ(overlap.first, "val/a/1.png");
}

TEST_F(OverlapTest, OfEveryKindOfArchive) {
  for (const std::string kind : {"wds", "zip", "tfrecord", "cifar"}) {
    const std::string spec = kind + ":" + (kFixtures / kind).string();
    const auto train = open(spec), val = open(spec, "val");
    EXPECT_EQ(find_overlap(*train, *val).samples, 0) << kind;
    EXPECT_EQ(find_overlap(*train, *train).samples, train->size()) << kind;
  }
}

TEST_F(OverlapTest, SyntheticImagesShareNothing) {
  const auto source = open("fake:8");
  EXPECT_EQ(find_overlap(*source, *source).samples, 0);
}

}  // namespace
}  // namespace tessera::data
