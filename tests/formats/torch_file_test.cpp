// SPDX-License-Identifier: Apache-2.0
// Files of Python's torch.save (fixtures/, made by make_torch_fixture.py), and the zip archives that they
// are.
#include "tessera/formats/torch_file.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/formats/safetensors.h"
#include "tests/error_text.h"

namespace tessera::formats {
namespace {
namespace fs = std::filesystem;
using PickleKind = PickleValue::Kind;

const fs::path kTorchFixtures = TESSERA_SOURCE_DIR "/tests/formats/fixtures";

class TorchValues : public ::testing::Test {
 protected:
  template <typename T>
  std::vector<T> numbers(const PickleValue& value, int64_t begin, size_t count) {
    std::vector<T> found(count);
    file.read(file.tensor(value, "x"), begin, std::as_writable_bytes(std::span(found)));
    return found;
  }
  const PickleValue& model(const char* name) { return *file.root().find("model")->find(name); }
  const TorchFile file{kTorchFixtures / "values.pth"};
};

TEST_F(TorchValues, TensorsOfEveryKindOfStride) {
  EXPECT_EQ(numbers<float>(model("whole"), 7, 3), std::vector<float>({7, 8, 9}));
  EXPECT_EQ(numbers<float>(model("turned"), 0, 6), std::vector<float>({0, 6, 12, 18, 1, 7}));
  EXPECT_EQ(numbers<float>(model("turned"), 5, 3), std::vector<float>({7, 13, 19}));
  EXPECT_EQ(numbers<float>(model("rows"), 0, 3), std::vector<float>({6, 7, 8}));
  EXPECT_EQ(numbers<float>(model("columns"), 0, 12),
            std::vector<float>({1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23}));
  EXPECT_EQ(numbers<float>(model("spread"), 0, 6), std::vector<float>(6, 7.0F));
  EXPECT_EQ(file.tensor(model("turned"), "x").shape, std::vector<int64_t>({6, 4}));
  EXPECT_TRUE(file.tensor(model("rows"), "x").contiguous());
  EXPECT_FALSE(file.tensor(model("columns"), "x").contiguous());
}

TEST_F(TorchValues, DtypesAndSizes) {
  EXPECT_EQ(file.tensor(model("half"), "x").dtype, "BF16");
  EXPECT_EQ(numbers<uint16_t>(model("half"), 0, 2), std::vector<uint16_t>({0x3F80, 0xBF00}));
  EXPECT_EQ(numbers<int64_t>(model("counts"), 0, 2), std::vector<int64_t>({-1, int64_t{1} << 40}));
  EXPECT_EQ(file.tensor(model("mask"), "x").dtype, "BOOL");
  EXPECT_EQ(numbers<double>(model("scalar"), 0, 1), std::vector<double>({3.25}));
  EXPECT_EQ(file.tensor(model("scalar"), "x").shape, std::vector<int64_t>());
  EXPECT_EQ(file.tensor(model("nothing"), "x").shape, std::vector<int64_t>({0, 5}));
  EXPECT_EQ(numbers<float>(*file.root().find("parameter"), 0, 2), std::vector<float>({1.5, -2.5}));
}

TEST_F(TorchValues, WhatLiesBesideTheTensors) {
  const PickleValue& root = file.root();
  EXPECT_EQ(root.find("epoch")->number, 12);
  EXPECT_EQ(root.find("large")->number, -(int64_t{1} << 62));
  EXPECT_EQ(root.find("real")->real, 1e-3);
  EXPECT_TRUE(root.find("none")->is(PickleKind::kNone));
  EXPECT_TRUE(root.find("flags")->items.at(0)->flag);
  EXPECT_EQ(root.find("size")->text, "torch.Size");
  EXPECT_EQ(root.find("size")->items.at(0)->items.at(0)->items.at(1)->number, 3);
  EXPECT_EQ(root.find("dtype")->text, "torch.float16");
  EXPECT_EQ(root.find("args")->text, "argparse.Namespace");
  EXPECT_EQ(root.find("args")->items.at(1)->find("name")->text, "vit");
  EXPECT_EQ(root.find("milestones")->items.at(0)->items.at(0)->entries.size(), 2U);
  EXPECT_EQ(error_text([&] { file.tensor(*root.find("epoch"), "epoch"); }),
            concat("[formats.torch] epoch is an integer (", (kTorchFixtures / "values.pth").string(),
                   "): expected a tensor"));
}

class DamagedTorchFile : public ::testing::Test {
 protected:
  std::string error(const std::string& bytes) {
    const fs::path path = folder.path() / "x.pth";
    fs::remove(path);  // a new file: some file systems wait for the disk where one is overwritten
    std::ofstream(path, std::ios::binary) << bytes;
    return error_text([&] {
      const TorchFile file(path);
      const auto* model = file.root().find("model");
      if (model == nullptr) user_error({.where = "formats.test", .problem = "no model"});
      for (const auto& [key, value] : model->entries) {
        const auto tensor = file.tensor(*value, key->text);
        std::vector<std::byte> out(64 * 8);
        file.read(tensor, 0, std::span(out).first(std::min(bytes_of(tensor), out.size())));
      }
    });
  }
  static size_t bytes_of(const TorchTensor& tensor) {
    size_t bytes = dtype_size(tensor.dtype);
    for (const int64_t dim : tensor.shape) bytes *= static_cast<size_t>(dim);
    return bytes;
  }
  std::string replaced(const std::string& from, const std::string& to, size_t skip = 0) const {
    std::string bytes = sound;
    size_t at = bytes.find(from);
    for (; skip > 0; --skip) at = bytes.find(from, at + 1);
    EXPECT_NE(at, std::string::npos) << from;
    return bytes.replace(at, to.size(), to);
  }
  const TemporaryFolder folder{"tessera-torch"};
  const std::string sound = read_file(kTorchFixtures / "values.pth");
  const std::string where = " (" + (folder.path() / "x.pth").string();
};

TEST_F(DamagedTorchFile, OtherFiles) {
  EXPECT_EQ(error(sound), "no error");
  EXPECT_EQ(error_text([&] { TorchFile(kTorchFixtures / "older.pth"); }),
            concat("[formats.torch] the file has the form of torch.save before version 1.6 (",
                   (kTorchFixtures / "older.pth").string(),
                   "): expected a zip archive; load it with torch.load and save it again"));
  EXPECT_EQ(error("GIF89a"),
            concat("[formats.torch] not a file of torch.save (a zip archive): it begins with other bytes",
                   where, ")"));
  EXPECT_EQ(error(""),
            concat("[formats.torch] not a file of torch.save (a zip archive): it begins with other bytes",
                   where, ")"));
}

TEST_F(DamagedTorchFile, EveryTruncationIsAnError) {
  for (size_t size = 0; size < sound.size(); ++size) {
    const auto text = error(sound.substr(0, size));
    EXPECT_TRUE(text.starts_with("[formats.")) << size << text;
  }
  EXPECT_EQ(error(sound.substr(0, sound.size() / 2)),
            concat("[formats.zip] bad zip archive ", (folder.path() / "x.pth").string(),
                   ": it has no zip directory at its end"));
}

TEST_F(DamagedTorchFile, AnyFlippedByteIsAnErrorOrLeavesItReadable) {
  for (size_t i = 0; i < sound.size(); ++i) {
    std::string bytes = sound;
    bytes[i] = static_cast<char>(bytes[i] ^ 0x10);
    const auto text = error(bytes);  // any other exception fails the test
    EXPECT_TRUE(text == "no error" || text.starts_with("[f")) << i << text;
  }
}

TEST_F(DamagedTorchFile, TensorsOutsideOfTheirStorage) {
  // Of "whole": the shape (4, 6) becomes (4, 250).
  EXPECT_EQ(error(replaced("K\x04K\x06\x86", "K\x04K\xfa\x86")),
            concat("[formats.torch] whole is a tensor that exceeds its storage of 96 bytes", where,
                   "): expected a tensor"));
  EXPECT_EQ(error(replaced("FloatStorage", "QuintStorage")),
            concat("[formats.pickle] bad pickle: class torch.QuintStorage", where, ", byte ",
                   std::to_string(sound.find("ctorch\nFloatStorage") - sound.find("\x80\x02}")),
                   " of the pickle): expected classes that hold data"));
  EXPECT_EQ(error(replaced("little", "biggie")),
            concat("[formats.torch] the byte order is \"biggie\"", where, "): expected little"));
}

// A writer of stored archives, to make what torch does not.
struct Zip {
  std::string bytes, directory;
  int members = 0;

  static std::string number(uint64_t value, int width) {
    std::string text;
    for (int i = 0; i < width; ++i) text += static_cast<char>(i < 8 ? value >> (8 * i) & 0xFF : 0);
    return text;
  }
  void add(const std::string& name, const std::string& content, bool wide = false, int method = 0) {
    const uint64_t at = bytes.size();
    const std::string sizes = number(content.size(), 4) + number(content.size(), 4);
    bytes += "PK\x03\x04" + number(0, 4) + number(method, 2) + number(0, 8) + sizes + number(name.size(), 2) +
             number(0, 2) + name + content;
    const std::string extra = wide ? number(1, 2) + number(24, 2) + number(content.size(), 8) +
                                         number(content.size(), 8) + number(at, 8)
                                   : "";
    directory += "PK\x01\x02" + number(0, 6) + number(method, 2) + number(0, 8) +
                 (wide ? std::string(8, '\xff') : sizes) + number(name.size(), 2) + number(extra.size(), 2) +
                 number(0, 10) + (wide ? std::string(4, '\xff') : number(at, 4)) + name + extra;
    ++members;
  }
  std::string finish(bool wide, const std::string& comment = "") const {
    const uint64_t at = bytes.size();
    std::string all = bytes + directory;
    if (wide) {
      const uint64_t end64 = all.size();
      all += "PK\x06\x06" + number(44, 8) + number(0, 12) + number(members, 8) + number(members, 8) +
             number(directory.size(), 8) + number(at, 8);
      all += "PK\x06\x07" + number(0, 4) + number(end64, 8) + number(1, 4);
    }
    const std::string places =
        number(members, 2) + number(members, 2) + number(directory.size(), 4) + number(at, 4);
    all += "PK\x05\x06" + number(0, 4) + (wide ? std::string(places.size(), '\xff') : places);
    return all + number(comment.size(), 2) + comment;
  }
};

class ZipDirectory : public ::testing::Test {
 protected:
  std::vector<ZipMember> read(const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
    return read_zip_directory(FileReader(path));
  }
  std::string error(const std::string& bytes) {
    return error_text([&] { read(bytes); });
  }
  const TemporaryFolder folder{"tessera-zip"};
  const fs::path path = folder.path() / "x.zip";
};

TEST_F(ZipDirectory, MembersPlainAndWide) {
  for (const bool wide : {false, true}) {
    Zip zip;
    zip.add("a", "hello", wide);
    zip.add("b/c", "", wide);
    zip.add("d", "x", !wide);
    const auto members = read(zip.finish(wide, wide ? "" : "a comment"));
    ASSERT_EQ(members.size(), 3U);
    EXPECT_EQ(members[0].name + members[1].name + members[2].name, "ab/cd");
    EXPECT_EQ(members[0].size, 5U);
    const FileReader file(path);
    std::string content(5, ' ');
    file.read(stored_member_offset(file, members[0]), std::as_writable_bytes(std::span(content)));
    EXPECT_EQ(content, "hello");
  }
}

TEST_F(ZipDirectory, Errors) {
  EXPECT_EQ(error(""),
            concat("[formats.zip] bad zip archive ", path.string(), ": it has no zip directory at its end"));
  Zip twice;
  twice.add("a", "1");
  twice.add("a", "2");
  EXPECT_EQ(error(twice.finish(false)),
            concat("[formats.zip] bad zip archive ", path.string(), ": it has two members named a"));
  twice.members = 1;
  twice.directory.clear();
  EXPECT_EQ(error(twice.finish(false)), concat("[formats.zip] bad zip archive ", path.string(),
                                               ": its directory has 0 members: expected 1"));

  Zip packed;
  packed.add("a", "1", false, 8);
  const auto members = read(packed.finish(false));
  EXPECT_EQ(error_text([&] { stored_member_offset(FileReader(path), members[0]); }),
            concat("[formats.zip] a in ", path.string(),
                   " is compressed: expected a member that is stored as it is"));

  Zip moved;
  moved.add("a", "12345");
  moved.directory[42] = 5;
  const auto wrong = read(moved.finish(false));
  EXPECT_EQ(error_text([&] { stored_member_offset(FileReader(path), wrong[0]); }),
            concat("[formats.zip] a in ", path.string(), " has no header at byte 5"));
  moved.directory[43] = 1;
  EXPECT_EQ(error(moved.finish(false)), concat("[formats.zip] bad zip archive ", path.string(),
                                               ": a has 5 bytes from 261, which are not inside the file"));
}

}  // namespace
}  // namespace tessera::formats
