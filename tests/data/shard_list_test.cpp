// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/shard_list.h"

#include <gtest/gtest.h>

#include "tessera/base/file.h"
#include "tessera/data/dali_index.h"
#include "tessera/data/zip_map.h"
#include "tests/data/folder_maker.h"
#include "tests/error_text.h"

namespace tessera::data {
namespace {
namespace fs = std::filesystem;
using Names = std::vector<std::string>;

TEST(ShardList, Braces) {
  EXPECT_EQ(expand_braces("a-{008..011}.tar"), (Names{"a-008.tar", "a-009.tar", "a-010.tar", "a-011.tar"}));
  EXPECT_EQ(expand_braces("{a,b}{1..2}"), (Names{"a1", "a2", "b1", "b2"}));
  EXPECT_EQ(expand_braces("{000000..000146}").size(), 147U);
  EXPECT_EQ(expand_braces("{000000..000146}").back(), "000146");
  for (const std::string plain : {"a", "{split}-{", "{}", "a}{b}"})
    EXPECT_EQ(expand_braces(plain), Names{plain});
  EXPECT_EQ(expand_braces("{split}-{1..2}"), (Names{"{split}-1", "{split}-2"}));
  EXPECT_EQ(error_text([] { expand_braces("{5..4}"); }),
            "[data.shards] the range {5..4} is not valid: expected 1 to 1000000 numbers in ascending order");
  EXPECT_EQ(error_text([] { expand_braces("{1..2000}{1..2000}"); }),
            "[data.shards] {1..2000}{1..2000} stands for too many names: expected at most 1000000");
  EXPECT_EQ(split_list("a{1,2}.tar,b::c,"), (Names{"a{1,2}.tar", "b", "c"}));
}

class FindShards : public ::testing::Test {
 protected:
  void touch(const std::string& name) { write_text(root / name, "x"); }
  /// Names below the folder, "a.tar b.tar".
  std::string find(const std::string& list, const std::string& split) {
    std::string names;
    const ShardKind kind{"data.open_wds", "tar files",
                         [](const std::string& name) { return name.ends_with(".tar"); }};
    for (const auto& path : find_shards(local_files(), list, split, kind)) {
      names += (names.empty() ? "" : " ") + path.lexically_relative(root).string();
    }
    return names;
  }
  std::string error(const std::string& list, const std::string& split) {
    return error_text([&] { find(list, split); });
  }
  const TemporaryFolder folder{"tessera-shards"};
  const fs::path root = folder.path();
  const std::string at = root.string() + "/";
};

TEST_F(FindShards, WordsOfTheNamesChooseTheSplit) {
  for (const std::string name :
       {"set-train-0.tar", "set-train-1.tar", "set-validation-0.tar", "set-train-0.idx"})
    touch(name);
  for (const std::string& list : {root.string(), at + "*.tar", at + "set-{split}-*.tar"}) {
    EXPECT_EQ(find(list, "train"), "set-train-0.tar set-train-1.tar") << list;
    EXPECT_EQ(find(list, "val"), "set-validation-0.tar") << list;
  }
  EXPECT_EQ(find(at + "set-train-{0..1}.tar," + at + "set-validation-0.tar", "val"), "set-validation-0.tar");
  EXPECT_EQ(error(root.string(), "test"),
            concat("[data.open_wds] ", root.string(),
                   " has no tar files of the split test, only of train, validation"));
  EXPECT_EQ(error(at + "set-train-{0..2}.tar", "train"),
            concat("[data.open_wds] 1 of 3 tar files do not exist, the first is ", at, "set-train-2.tar"));
}

TEST_F(FindShards, NamedEntriesAndFolders) {
  touch("x/0.tar");
  touch("x/1.tar");
  touch("y/0.tar");
  const std::string list = "train=" + at + "x/{0..1}.tar,val=" + at + "y/0.tar";
  EXPECT_EQ(find(list, "train"), "x/0.tar x/1.tar");
  EXPECT_EQ(find(list, "val"), "y/0.tar");
  EXPECT_EQ(error(list, "test"), concat("[data.open_wds] ", list, " has no tar files of the split test"));
  EXPECT_EQ(find(at + "x", "train"), "x/0.tar x/1.tar")
      << "names without a split's word belong to every split";
  EXPECT_EQ(find(at + "x", "val"), "x/0.tar x/1.tar");
  touch("z/train/0.tar");
  touch("z/test/1.tar");
  EXPECT_EQ(find(at + "z", "train"), "z/train/0.tar");
  EXPECT_EQ(find(at + "z", "val"), "z/test/1.tar");
  EXPECT_EQ(find(at + "z/{split}/*.tar", "val"), "z/test/1.tar");
  EXPECT_EQ(error(at + "none", "train"),
            concat("[data.open_wds] 1 of 1 tar files do not exist, the first is ", at, "none"));
}

TEST_F(FindShards, WhatAFolderHoldsInstead) {
  touch("w/b.tar.zst");
  EXPECT_EQ(error(at + "w", "train"),
            concat("[data.open_wds] ", at, "w has no tar files of the split train; there is b.tar.zst"));
  for (const std::string name : {"a.tar.bz2", "c.txt", "d.txt", "e.txt"}) touch("w/" + name);
  EXPECT_EQ(
      error(at + "w", "train"),
      concat("[data.open_wds] ", at,
             "w has no tar files of the split train; there are a.tar.bz2, b.tar.zst, c.txt and 2 more"));
}

TEST_F(FindShards, NumberedFilesAreAllThere) {
  const auto check = [&](const Names& names) {
    std::vector<fs::path> files;
    for (const auto& name : names) files.push_back(root / name);
    return error_text([&] { check_numbered(files, "data.open_tfrecord"); });
  };
  EXPECT_EQ(check({"x", "a-00000-of-00002", "a-00001-of-00002", "b.tfrecord-00000-of-00001.gz"}), "no error");
  EXPECT_EQ(check({"a-00000-of-00001", "b-00000-of-00004.gz", "b-00002-of-00004.gz"}),
            concat("[data.open_tfrecord] 2 of 4 files that the names count do not exist, the first is ", at,
                   "b-00001-of-00004.gz; name the existing files to use them alone"));
}

TEST_F(FindShards, OneListForTrainingAndValidationIsNoticed) {
  touch("s/a.tar");
  const ShardKind kind{"data.open_wds", "tar files",
                       [](const std::string& name) { return name.ends_with(".tar"); }};
  const auto said = [&](const std::string& list, const std::string& split) {
    return same_as_training(local_files(), list, split, find_shards(local_files(), list, split, kind), kind);
  };
  EXPECT_EQ(said(at + "s", "val"), "[data.open_wds] other files for val than for train: both are " + at +
                                       "s/a.tar (in " + at +
                                       "s; their names speak of no split: write train=FILES,val=FILES)");
  EXPECT_EQ(said(at + "s", "train"), "");
  touch("s/b.tar");
  EXPECT_NE(said(at + "s", "val").find("both are the same 2 files (in "), std::string::npos);
  touch("t/train-0.tar");
  touch("t/val-0.tar");
  EXPECT_EQ(said(at + "t", "val"), "");
  EXPECT_EQ(said("val=" + at + "s/a.tar", "val"), "");
}

TEST(DaliIndex, Versions) {
  std::string seen;
  const auto read = [&](const std::string& text) {
    seen.clear();
    return read_dali_index(text, [&](std::span<const DaliMember> members) {
      for (const auto& m : members) seen += concat(m.ending, m.offset, "+", m.size, m.name, " ");
      seen += "| ";
    });
  };
  EXPECT_EQ(read("v1.2 2\ncls 1536 1 0.cls png 3584 69 0.png\ncls 5632 1 1.cls\n"), "");
  EXPECT_EQ(seen, "cls1536+10.cls png3584+690.png | cls5632+11.cls | ");
  EXPECT_EQ(read("v1.1 1\ncls 1536 1 png 3584 69\n"), "");
  EXPECT_EQ(seen, "cls1536+1 png3584+69 | ");
  EXPECT_EQ(read("v9 1\n"), "its first line is wrong: expected 'v1.2' or 'v1.1' and the number of samples");
  EXPECT_EQ(read("v1.2 1\ncls x 1 a\n"),
            "its sample 0 is incomplete: expected an ending, an offset and a size for each member");
  EXPECT_EQ(read("v1.2 3\ncls 1 1 a\n"), "its number of samples is 1: expected 3, as its first line says");
}

TEST(ZipMap, TabsBlanksAndWhatIsMissing) {
  std::string seen;
  read_map(
      "\xEF\xBB\xBF"
      "a b.jpg\t1\r\n\nn1/c.jpg  22\nalone\nd.jpg\t\n",
      [&](const MapLine& line) { seen += concat(line.number, "[", line.name, "][", line.label, "] "); });
  EXPECT_EQ(seen, "1[a b.jpg][1] 3[n1/c.jpg][22] 4[alone][] 5[d.jpg][] ");
}

}  // namespace
}  // namespace tessera::data
