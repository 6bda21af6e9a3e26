// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <fstream>

#include "tessera/base/file.h"
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
  const std::string damaged = error(0, [](std::string& bytes, ZipMember& m) { bytes[m.header + 60] ^= 1; });
  EXPECT_TRUE(damaged.starts_with(concat("[formats.zip] n00/0.png in ", path.string(), " has the CRC ")))
      << damaged;
  EXPECT_NE(damaged.find(": expected "), std::string::npos) << damaged;
  EXPECT_EQ(error(1, [](std::string&, ZipMember& m) { m.size = 76; }),
            concat("[formats.zip] n01/1.png in ", path.string(),
                   " has damaged data: expected 76 bytes of deflated data"));
  EXPECT_EQ(error(0, [](std::string& bytes, ZipMember& m) { bytes[m.header + 30] = 'x'; }),
            concat("[formats.zip] n00/0.png in ", path.string(), " has no header at byte 0"));
  EXPECT_EQ(error(0, [](std::string&, ZipMember& m) { m.encrypted = true; }),
            concat("[formats.zip] n00/0.png in ", path.string(), " is encrypted"));
  EXPECT_EQ(error(0, [](std::string&, ZipMember& m) { m.method = 12; }),
            concat("[formats.zip] n00/0.png in ", path.string(),
                   " is compressed by method 12: expected stored or deflated members"));
  EXPECT_EQ(
      error(0, [](std::string&, ZipMember& m) { m.size = uint64_t{2} << 30; }),
      concat("[formats.zip] n00/0.png in ", path.string(), " has 2147483648 bytes: expected at most 1 GiB"));
  EXPECT_EQ(error(1, [](std::string&, ZipMember& m) { m.size = 1 << 20; }),
            concat("[formats.zip] n01/1.png in ", path.string(),
                   " has contradicting sizes: 72 bytes packed and 1048576 unpacked"));
  EXPECT_EQ(error(0, [](std::string& bytes, ZipMember&) { bytes.resize(90); }),
            concat("[formats.zip] n00/0.png in ", path.string(),
                   " is not inside the file: it has 69 bytes from 0"));
  EXPECT_EQ(error(0, [](std::string& bytes, ZipMember&) { bytes.resize(105); }),
            concat("[formats.zip] n00/0.png in ", path.string(), " is cut off"));
}

}  // namespace
}  // namespace tessera::formats
