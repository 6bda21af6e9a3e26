// SPDX-License-Identifier: Apache-2.0
// Files of numpy.savez and savez_compressed (fixtures/, made by make_npz_fixture.py), and what NpzWriter
// writes.
#include "tessera/formats/npz.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <fstream>

#include "tessera/base/file.h"
#include "tests/error_text.h"

namespace tessera::formats {
namespace {
namespace fs = std::filesystem;

const fs::path kNpzFixtures = TESSERA_SOURCE_DIR "/tests/formats/fixtures";

template <typename T>
std::vector<T> numbers(const NpzFile& file, const std::string& name, int64_t begin, size_t count) {
  for (size_t i = 0; i < file.arrays().size(); ++i) {
    if (file.arrays()[i].name != name) continue;
    std::vector<T> found(count);
    file.read(i, begin, std::as_writable_bytes(std::span(found)));
    return found;
  }
  ADD_FAILURE() << "no array " << name;
  return {};
}

class Npz : public ::testing::TestWithParam<const char*> {
 protected:
  const NpzFile file{kNpzFixtures / GetParam()};
};

TEST_P(Npz, ArraysOfEveryKind) {
  ASSERT_EQ(file.arrays().size(), 7U);
  EXPECT_EQ(numbers<float>(file, "whole", 7, 3), std::vector<float>({7, 8, 9}));
  EXPECT_EQ(numbers<float>(file, "folder/turned", 0, 24), numbers<float>(file, "whole", 0, 24));
  EXPECT_EQ(numbers<float>(file, "folder/turned", 10, 4), std::vector<float>({10, 11, 12, 13}));
  EXPECT_EQ(numbers<uint16_t>(file, "half", 0, 3), std::vector<uint16_t>({0x3C00, 0xB800, 0x7BFF}));
  EXPECT_EQ(numbers<uint16_t>(file, "brain", 1, 1), std::vector<uint16_t>({0xBF00}));
  EXPECT_EQ(numbers<double>(file, "double", 0, 1), std::vector<double>({3.25}));
  EXPECT_EQ(numbers<int64_t>(file, "long", 0, 2), std::vector<int64_t>({-1, int64_t{1} << 40}));
  for (const auto& array : file.arrays()) {
    if (array.name == "brain") {
      EXPECT_EQ(array.header.dtype, "BF16");
    }
    if (array.name == "folder/turned") {
      EXPECT_TRUE(array.header.fortran_order);
    }
    if (array.name == "double") {
      EXPECT_EQ(array.header.shape, std::vector<int64_t>());
    }
    if (array.name == "none") {
      EXPECT_EQ(array.header.shape, std::vector<int64_t>({0, 5}));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Files, Npz, ::testing::Values("values.npz", "packed.npz"),
                         [](const auto& info) { return std::string(info.param).substr(0, 6); });

NpyHeader header_of(const std::string& text) { return parse_npy_header(std::as_bytes(std::span(text)), "x"); }

std::string npy(const std::string& dict, char version = 1) {
  std::string start = std::string("\x93NUMPY") + version + '\0' + static_cast<char>(dict.size());
  start.append(version == 1 ? 1 : 3, '\0');
  return start + dict;
}

TEST(Npy, HeadersOfAllVersions) {
  for (const char version : {'\1', '\2', '\3'}) {
    const auto header =
        header_of(npy("{'descr': '<f4', 'fortran_order': True, 'shape': (3, 4L), }  \n", version));
    EXPECT_EQ(header.shape, std::vector<int64_t>({3, 4}));
    EXPECT_TRUE(header.fortran_order);
  }
  EXPECT_EQ(header_of(npy_header_text("BF16", {7})).shape, std::vector<int64_t>({7}));
  EXPECT_EQ(header_of(npy_header_text("F32", {})).shape, std::vector<int64_t>());
  EXPECT_EQ(npy_header_text("F32", {2, 3}).size() % 64, 0U);
}

TEST(Npy, WhatIsNoArrayOfNumbersIsNamed) {
  const auto error = [](const std::string& dict) { return error_text([&] { header_of(npy(dict)); }); };
  const std::string rest = ", 'fortran_order': False, 'shape': (1,)}";
  EXPECT_EQ(error("{'descr': '|O'" + rest),
            "[formats.npy] the dtype is \"|O\", which stands for Python objects, which are never loaded (x): "
            "expected little-endian numbers (<f4, <f2, V2 for bfloat16, <i8, ...)");
  EXPECT_EQ(error("{'descr': '>f4'" + rest),
            "[formats.npy] the dtype is \">f4\", which is big-endian (x): expected little-endian numbers "
            "(<f4, <f2, V2 for bfloat16, <i8, ...)");
  EXPECT_EQ(error("{'descr': [('a', '<f4')]" + rest),
            "[formats.npy] the array has records (x): expected an array of numbers");
  EXPECT_EQ(error("{'descr': '<f4', 'shape': (1,)}"),
            "[formats.npy] the header has \"\" (x): expected all three keys, in a header of descr, "
            "fortran_order and shape");
  EXPECT_EQ(error("{'descr': '<f4', 'shape': (1,-2)}"),
            "[formats.npy] the header has \"-2)}\" (x): expected a size, in a header of descr, fortran_order "
            "and shape");
  EXPECT_EQ(error("{'descr': '<f4', 'fortran_order': False, 'shape': (9999999999, 9999999999)}"),
            "[formats.npy] the shape has too many elements (x)");
  EXPECT_EQ(error_text([&] { header_of("GIF89a......"); }),
            "[formats.npy] not an array of numpy.save: it begins with other bytes (x)");
  EXPECT_EQ(error_text([&] { header_of(npy("{}", 9)); }),
            "[formats.npy] the version is 9.0 (x): expected 1.0, 2.0 or 3.0");
}

TEST(NpzDamaged, EveryTruncationAndFlippedByteIsAnErrorOrReadable) {
  const TemporaryFolder folder("tessera-npz");
  const auto error = [&](const std::string& bytes) {
    const fs::path path = folder.path() / "x.npz";
    fs::remove(path);
    std::ofstream(path, std::ios::binary) << bytes;
    return error_text([&] {
      const NpzFile file(path);
      std::vector<std::byte> out(8);
      for (size_t i = 0; i < file.arrays().size(); ++i) {
        if (file.arrays()[i].name == "long") file.read(i, 0, out);
      }
    });
  };
  for (const char* name : {"values.npz", "packed.npz"}) {
    const std::string sound = read_file(kNpzFixtures / name);
    EXPECT_EQ(error(sound), "no error");
    for (size_t size = 0; size < sound.size(); size += 7) {
      EXPECT_TRUE(error(sound.substr(0, size)).starts_with("[formats.")) << size;
    }
    for (size_t i = 0; i < sound.size(); i += 3) {
      std::string bytes = sound;
      bytes[i] = static_cast<char>(bytes[i] ^ 0x10);
      const auto text = error(bytes);  // any other exception fails the test
      EXPECT_TRUE(text == "no error" || text.starts_with("[f")) << i << text;
    }
  }
  EXPECT_EQ(error("GIF89a"),
            concat("[formats.npz] ", (folder.path() / "x.npz").string(),
                   " is not a file of numpy.savez (a zip archive): it begins with other bytes"));
}

TEST(NpzWriter, WritesWhatNpzFileReads) {
  const TemporaryFolder folder("tessera-npz");
  const fs::path path = folder.path() / "x.npz";
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  const auto bytes = std::as_bytes(std::span(values));
  const auto crc =
      static_cast<uint32_t>(crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
  NpzWriter writer(path);
  writer.begin("a/kernel", "F32", {2, 3}, crc);
  writer.write(bytes.first(8));
  writer.write(bytes.subspan(8));
  writer.begin("empty", "BF16", {0}, 0);
  writer.finish();
  const NpzFile file(path);
  ASSERT_EQ(file.arrays().size(), 2U);
  EXPECT_EQ(file.arrays()[0].header.shape, std::vector<int64_t>({2, 3}));
  EXPECT_EQ(numbers<float>(file, "a/kernel", 0, 6), values);
  const FileReader reader(path);  // the checksum of the member is that of header and numbers
  for (const auto& member : read_zip_directory(reader)) EXPECT_NO_THROW(read_zip_member(reader, member));
}

}  // namespace
}  // namespace tessera::formats
