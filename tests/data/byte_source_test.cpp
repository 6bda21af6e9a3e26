// SPDX-License-Identifier: Apache-2.0
// Every kind of data source reads through SourceOptions::files alone.
#include <gtest/gtest.h>

#include "tests/data/archives.h"
#include "tests/data/folder_maker.h"
#include "tests/memory_files.h"

namespace tessera::data {
namespace {
namespace fs = std::filesystem;

class InMemory : public Archives {
 protected:
  InMemory() { options.files = &files; }

  /// `kind`:`path` of the local data and of their copy in memory: the same samples.
  void expect_as_local(const std::string& kind, const fs::path& local, const std::string& split,
                       const std::string& more = "") {
    SCOPED_TRACE(concat(kind, " ", split, more));
    SourceOptions on_disk;
    on_disk.index_dir = "none";
    const auto expected = open_source(concat(kind, ":", local.string(), more), split, on_disk);
    const fs::path copy = files.add(local);
    const int before = files.opened();
    const auto found = open(concat(kind, ":", copy.string(), more), split);
    ASSERT_EQ(found->size(), expected->size());
    EXPECT_GT(found->size(), 0);
    EXPECT_EQ(found->classes(), expected->classes());
    for (int64_t i = 0; i < found->size(); ++i) {
      EXPECT_EQ(found->label(i), expected->label(i)) << i;
      EXPECT_EQ(found->sample_name(i), expected->sample_name(i)) << i;
      EXPECT_EQ(found->read(i, 3).pixels, expected->read(i, 3).pixels) << i;
    }
    EXPECT_GT(files.opened(), before);
  }

  MemoryFiles files;
};

TEST_F(InMemory, EveryKindOfSourceIsReadThroughTheInterface) {
  const fs::path folder = temporary.path() / "pictures";
  for (const char* split : {"train", "val"}) {
    for (const char* name : {"a/1.png", "a/2.png", "b/3.png"})
      write_image(folder / split / name, static_cast<uint8_t>(20 * name[2]));
  }
  expect_as_local("folder", folder, "train");
  expect_as_local("folder", folder, "val");
  expect_as_local("zip", kFixtures / "zip", "train");
  expect_as_local("wds", kFixtures / "wds", "train");
  expect_as_local("wds", kFixtures / "wds", "train", "/set-train-*.tar");
  expect_as_local("wds", kFixtures / "wds", "val");
  expect_as_local("tfrecord", kFixtures / "tfrecord", "train");
  expect_as_local("tfrecord", kFixtures / "tfrecord", "val");
  expect_as_local("tfrecord", kFixtures / "tfds" / "tiny", "train");
  expect_as_local("cifar", kFixtures / "cifar" / "cifar-100-binary", "test");
  expect_as_local("cifar", kFixtures / "cifar" / "cifar-10-binary.tar.gz", "test");
  const fs::path idx = temporary.path() / "digits";
  write_text(idx / "train-images-idx3-ubyte", idx_file({2, 1, 2}, "abcd"));
  write_text(idx / "train-labels-idx1-ubyte", idx_file({2}, std::string("\0\1", 2)));
  expect_as_local("idx", idx, "train");
}

TEST_F(InMemory, AnIndexFileOfThemIsLocal) {
  options.index_dir = (temporary.path() / "indexes").string();
  const fs::path copy = files.add(kFixtures / "wds");
  for (int start = 0; start < 2; ++start) expect_set(*open("wds:" + copy.string()), 6);
  EXPECT_EQ(std::distance(fs::directory_iterator(options.index_dir), {}), 1);
}

TEST_F(InMemory, MissingFoldersAreNamed) {
  EXPECT_EQ(open_error("folder:/tessera-files-in-memory/none"),
            "[data.open_source] /tessera-files-in-memory/none does not exist: expected a folder of data");
}

}  // namespace
}  // namespace tessera::data
