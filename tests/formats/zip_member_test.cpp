// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <fstream>

#include "tessera/formats/zip_directory.h"
#include "tests/error_text.h"

namespace tessera::formats {
namespace {
namespace fs = std::filesystem;

const fs::path kZipFixtures = fs::path(TESSERA_SOURCE_DIR) / "tests" / "data" / "fixtures" / "zip";

class ZipMemberTest : public ::testing::Test {
 protected:
  /// Member `i` of the fixture with changed bytes.
  std::string error(size_t i, const std::function<void(std::string&, ZipMember&)>& change) {
    std::string bytes = read_file(kZipFixtures / "train.zip");
    ZipMember member = read_zip_directory(FileReader(kZipFixtures / "train.zip"))[i];
    change(bytes, member);
    std::ofstream(path, std::ios::binary) << bytes;
    return error_text([&] { read_zip_member(FileReader(path), member); });
  }
  const TemporaryFolder folder{"tessera-zip"};
  const fs::path path = folder.path() / "x.zip";
};

TEST_F(ZipMemberTest, StoredDeflatedAndWide) {
  for (const std::string name : {"train.zip", "val.zip"}) {
    const FileReader file(kZipFixtures / name);
    int deflated = 0;
    for (const auto& member : read_zip_directory(file)) {
      const std::string content = read_zip_member(file, member);
      EXPECT_TRUE(content.starts_with("\x89PNG")) << member.name;
      EXPECT_EQ(content.size(), member.size);
      deflated += member.method == 8 ? 1 : 0;
    }
    EXPECT_EQ(deflated, name == "train.zip" ? 3 : 0);
  }
}

TEST_F(ZipMemberTest, Errors) {
  const std::string first = " (n00/0.png in " + path.string() + ")",
                    second = " (n01/1.png in " + path.string() + ")";
  const std::string damaged = error(0, [](std::string& bytes, ZipMember& m) { bytes[m.header + 60] ^= 1; });
  EXPECT_TRUE(damaged.starts_with("[formats.zip] content with CRC ")) << damaged;
  EXPECT_TRUE(damaged.ends_with(first)) << damaged;
  EXPECT_EQ(error(1, [](std::string&, ZipMember& m) { m.size = 76; }),
            "[formats.zip] sound deflated data of 76 bytes: found other" + second);
  EXPECT_EQ(error(0, [](std::string& bytes, ZipMember& m) { bytes[m.header + 30] = 'x'; }),
            "[formats.zip] its header at byte 0: found other bytes" + first);
  EXPECT_EQ(error(0, [](std::string&, ZipMember& m) { m.encrypted = true; }),
            "[formats.zip] a member that is not encrypted: it is" + first);
  EXPECT_EQ(error(0, [](std::string&, ZipMember& m) { m.method = 12; }),
            "[formats.zip] a member that is stored or deflated: its method is 12" + first);
  EXPECT_EQ(error(0, [](std::string&, ZipMember& m) { m.size = uint64_t{2} << 30; }),
            "[formats.zip] a member of at most 1 GiB: it has 2147483648 bytes" + first);
  EXPECT_EQ(error(1, [](std::string&, ZipMember& m) { m.size = 1 << 20; }),
            "[formats.zip] sizes that go together: found " +
                std::to_string(read_zip_directory(FileReader(kZipFixtures / "train.zip"))[1].packed_size) +
                " bytes packed and 1048576 unpacked" + second);
  EXPECT_EQ(error(0, [](std::string& bytes, ZipMember&) { bytes.resize(90); }),
            "[formats.zip] a member inside of the file: its 69 bytes from 0 leave it" + first);
  EXPECT_EQ(error(0, [](std::string& bytes, ZipMember&) { bytes.resize(105); }),
            "[formats.zip] a whole member: the archive is cut off" + first);
}

}  // namespace
}  // namespace tessera::formats
