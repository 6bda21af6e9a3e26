// SPDX-License-Identifier: Apache-2.0
#include "tessera/formats/tar.h"

#include <gtest/gtest.h>

#include "tessera/base/file.h"
#include "tests/error_text.h"
#include "tests/formats/text_stream.h"

namespace tessera::formats {
namespace {
namespace fs = std::filesystem;

const fs::path kTarFixtures = fs::path(TESSERA_SOURCE_DIR) / "tests" / "data" / "fixtures" / "tar";

/// "name size" of all members, and their contents.
std::vector<std::string> members(ByteStream& stream, std::string* contents = nullptr) {
  TarReader reader(stream, "x.tar");
  std::vector<std::string> found;
  while (const auto member = reader.next()) {
    found.push_back(concat(member->name, " ", member->size));
    if (contents != nullptr && member->name.ends_with(".cls")) *contents += reader.content(10);
  }
  EXPECT_TRUE(reader.ended_with_mark());
  return found;
}

void set(std::string& header, size_t at, const std::string& value) {
  header.replace(at, value.size(), value);
}

/// A header of 512 bytes with the right checksum.
std::string header(const std::string& name, const std::string& size, char type = '0') {
  std::string block(512, '\0');
  set(block, 0, name);
  set(block, 124, size);
  block[156] = type;
  set(block, 257, "ustar");
  set(block, 148, "        ");
  int sum = 0;
  for (const char c : block) sum += static_cast<uint8_t>(c);
  char digits[8];
  std::snprintf(digits, sizeof digits, "%06o", static_cast<unsigned>(sum) & 0777777U);
  set(block, 148, std::string(digits, 7) + " ");
  return block;
}

std::string tar_error(const std::string& archive) {
  TextStream stream(archive);
  return error_text([&] {
    TarReader reader(stream, "x.tar");
    while (reader.next()) {
    }
  });
}

TEST(Tar, EveryFormatThatPythonWrites) {
  const std::string a(90, 'a'), b(120, 'b'), c(90, 'c');
  for (const std::string form : {"ustar", "gnu", "pax"}) {
    const FileReader file(kTarFixtures / (form + ".tar"));
    FileStream stream(file, 700);  // blocks that do not fall on the archive's
    const std::string last = form == "ustar" ? a + "/" + c + ".cls" : a + "/" + b + "/\u00e9.cls";
    std::string labels;
    EXPECT_EQ(members(stream, &labels),
              (std::vector<std::string>{"folder/1.png 77", "folder/1.cls 2", last + " 1"}))
        << form;
    EXPECT_EQ(labels, "1\n2");
  }
}

TEST(Tar, EveryCutIsAnErrorOrFewerMembers) {
  const std::string whole = read_file(kTarFixtures / "pax.tar");
  size_t end = 0, errors = 0;
  {
    TextStream stream(whole);
    TarReader reader(stream, "x.tar");
    while (const auto member = reader.next()) end = member->offset + member->size;
  }
  for (size_t size = 0; size < end; size += 7) {
    TextStream stream(whole.substr(0, size));
    TarReader reader(stream, "x.tar");
    try {
      while (reader.next()) {
      }
      EXPECT_FALSE(reader.ended_with_mark());
    } catch (const UserError&) {
      ++errors;
    }
  }
  EXPECT_GT(errors, 400U);
}

TEST(Tar, LargeSizesAndPaxSizes) {
  std::string base256(12, '\0');
  base256[0] = static_cast<char>(0x80);
  base256[11] = 3;
  TextStream stream(header("a", base256) + "xyz" + std::string(509, '\0') +
                    header("pax", "00000000012", 'x') + "10 size=4\n" + std::string(502, '\0') +
                    header("b", "00000000000") + "wxyz" + std::string(508 + 1024, '\0'));
  EXPECT_EQ(members(stream), (std::vector<std::string>{"a 3", "b 4"}));
}

TEST(Tar, ErrorsNameTheByte) {
  EXPECT_EQ(tar_error("short"),
            "[formats.tar] the archive is cut off: its last header has 5 bytes (byte 0 of x.tar): expected "
            "512 bytes");
  std::string damaged = header("a", "00000000000");
  damaged[0] = 'b';
  EXPECT_EQ(tar_error(damaged), "[formats.tar] a header has a wrong checksum (byte 0 of x.tar)");
  EXPECT_EQ(tar_error(header("a", "00000001000") + "xyz"),
            "[formats.tar] the archive is cut off within a: 509 bytes are missing (byte 515 of x.tar)");
  EXPECT_EQ(tar_error(header("a", "9")),
            "[formats.tar] the size in a header is not a number (byte 0 of x.tar)");
  EXPECT_EQ(tar_error(header("a", std::string(12, '\xff'))),
            "[formats.tar] the size in a header is not a number (byte 0 of x.tar)");
  EXPECT_EQ(tar_error(header("a", "00077777777", 'x')),
            "[formats.tar] a long header has 16777215 bytes (byte 512 of x.tar): expected at most 1048576");
  EXPECT_EQ(tar_error(header("a", "00000000004", 'x') + "9 x\n" + std::string(508, '\0') +
                      header("b", "00000000000")),
            "[formats.tar] the pax records before this byte cannot be read (byte 1536 of x.tar)");
  EXPECT_EQ(tar_error(header("a", "00000001000", 'L') + "abc"),
            "[formats.tar] the archive is cut off within a long header (byte 515 of x.tar)");
}

TEST(Tar, ContentThatIsCutOffIsAnError) {
  TextStream stream(header("a", "00000001000") + "xyz");
  TarReader reader(stream, "x.tar");
  ASSERT_TRUE(reader.next());
  EXPECT_EQ(error_text([&] { reader.content(1000); }),
            "[formats.tar] the archive is cut off within a (byte 515 of x.tar)");
  EXPECT_FALSE(reader.last_is_whole());
}

}  // namespace
}  // namespace tessera::formats
