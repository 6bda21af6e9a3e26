// SPDX-License-Identifier: Apache-2.0
// Zip archives beyond the old format's limits.
#include <gtest/gtest.h>

#include <cstdlib>

#include "tessera/formats/zip_directory.h"
#include "tessera/prepare/pack.h"
#include "tests/prepare/memory_source.h"

namespace tessera::prepare {
namespace {
namespace fs = std::filesystem;

// More members than 16 bits count, and places beyond 32 bits.
TEST(Zip64, ManyMembers) {
  const TemporaryFolder folder("tessera-pack");
  const auto open = [](const std::string&) {
    auto source = std::make_unique<MemorySource>(std::vector<std::string>{"a"});
    for (int i = 0; i < 66'000; ++i) source->add(concat("a/", i, ".jpg"), 0, "\xFF\xD8\xFF");
    return source;
  };
  PackOptions options;
  options.form = Form::kZip;
  options.splits = {"train"};
  pack(open, "x", folder.path(), options);
  const FileReader file(folder.path() / "train.zip");
  const auto members = formats::read_zip_directory(file);
  ASSERT_EQ(members.size(), 66'000U);
  EXPECT_EQ(members.back().name, "a/65999.jpg");
  EXPECT_EQ(formats::stored_member_offset(file, members.back()), members.back().header + 30 + 11);
}

TEST(Zip64, MembersBeyondFourGigabytes) {
  const TemporaryFolder folder("tessera-pack");
  const auto writer = zip_writer(folder.path());
  Split split{"train", {"a"}, {}};
  writer->open(split);
  Block first =
      writer->frame({.path = "a/1.jpg", .key = "1", .ending = "jpg", .label = 0, .file = image_like(1, 64)});
  writer->append(first);
  writer->seal();
  // What an earlier run left, with a hole: a member that is said to be nearly 4 GiB.
  const uint64_t size = 0xFFFFFFF0;
  std::string header = first.bytes.substr(0, first.image_at);
  for (size_t i = 0; i < 4; ++i) header[18 + i] = header[22 + i] = static_cast<char>(size >> (8 * i));
  write_file_atomic(folder.path() / "train.zip.part", header);
  fs::resize_file(folder.path() / "train.zip.part", header.size() + size);
  split.parts.push_back(
      {.split = "train", .end = 1, .samples = 1, .jpegs = 1, .bytes = header.size() + size, .left_out = {}});
  writer->open(split);
  writer->append(
      writer->frame({.path = "a/2.jpg", .key = "2", .ending = "jpg", .label = 0, .file = image_like(2, 64)}));
  writer->seal();
  writer->close();
  const FileReader file(folder.path() / "train.zip");
  const auto members = formats::read_zip_directory(file);
  ASSERT_EQ(members.size(), 2U);
  EXPECT_EQ(members[0].size, size);
  EXPECT_EQ(members[1].name, "a/2.jpg");
  ASSERT_EQ(members[1].header, header.size() + size);
  std::string content(64, '\0');
  file.read(formats::stored_member_offset(file, members[1]), std::as_writable_bytes(std::span(content)));
  EXPECT_EQ(content, image_like(2, 64));
  EXPECT_EQ(read_file(folder.path() / "train_map.txt"), "a/1.jpg\t0\na/2.jpg\t0\n");
  const std::string python =
      concat("python3 -c \"import zipfile; z = zipfile.ZipFile('", (folder.path() / "train.zip").string(),
             "'); assert len(z.read('a/2.jpg')) == 64\"");
  if (std::system("python3 -c pass") == 0) {
    EXPECT_EQ(std::system(python.c_str()), 0);
  }
}

}  // namespace
}  // namespace tessera::prepare
