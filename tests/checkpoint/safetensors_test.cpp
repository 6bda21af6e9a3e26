// SPDX-License-Identifier: Apache-2.0
#include "tessera/formats/safetensors.h"

#include <gtest/gtest.h>

#include "sample_state.h"
#include "tessera/base/checksum.h"
#include "tessera/base/file.h"
#include "tessera/formats/safetensors_header.h"

namespace tessera::formats {
namespace {

std::string file_of(const std::string& header, size_t buffer_bytes) {
  std::string bytes(8, '\0');
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(uint64_t{header.size()} >> (8 * i));
  return bytes + header + std::string(buffer_bytes, 'x');
}
SafetensorsHeader parse(const std::string& bytes) {
  return parse_safetensors_header(std::as_bytes(std::span(bytes)), bytes.size(), "f.safetensors");
}

TEST(Safetensors, WriterAndReaderAgree) {
  const TemporaryFolder folder("tessera-safetensors");
  const auto path = folder.path() / "a.safetensors";
  const std::map<std::string, std::string> metadata = {{"format", "pt"}, {"a \"quoted\"\nkey", "\xc3\xa4"}};
  SafetensorsWriter writer(path,
                           {{.name = "w", .dtype = "F32", .shape = {2, 3}},
                            {.name = "none", .dtype = "F32", .shape = {0}},
                            {.name = "s", .dtype = "BF16", .shape = {}}},
                           metadata);
  const std::string bytes = "abcdefghijklmnopqrstuvwxyz";
  const auto all = std::as_bytes(std::span(bytes));
  size_t written = 0;
  for (const size_t size : {1, 20, 0, 4, 1}) {  // pieces of any size, over the borders of tensors
    writer.write(all.subspan(written, size));
    written += size;
  }
  const std::string checksum = writer.finish();
  Checksum whole;
  const std::string file = read_file(path);
  whole.update(std::as_bytes(std::span(file)));
  EXPECT_EQ(checksum, whole.hex());

  const SafetensorsReader reader(path);
  EXPECT_EQ(reader.metadata(), metadata);
  ASSERT_EQ(reader.entries().size(), 3U);
  EXPECT_EQ((file.size() - 26) % 8, 0U);
  const auto* scalar = reader.find("s");
  ASSERT_NE(scalar, nullptr);
  EXPECT_TRUE(scalar->shape.empty());
  std::string two(2, ' ');
  reader.read(*scalar, 0, std::as_writable_bytes(std::span(two)));
  EXPECT_EQ(two, "yz");
  reader.read(*reader.find("w"), 5, std::as_writable_bytes(std::span(two)));
  EXPECT_EQ(two, "fg");
  EXPECT_EQ(reader.find("none")->begin, reader.find("none")->end);
  EXPECT_EQ(reader.find("absent"), nullptr);
  EXPECT_THROW(reader.read(*scalar, 1, std::as_writable_bytes(std::span(two))), InternalError);
}

TEST(Safetensors, AnUnfinishedFileIsRemoved) {
  const TemporaryFolder folder("tessera-safetensors");
  const auto path = folder.path() / "a.safetensors";
  {
    SafetensorsWriter writer(path, {{.name = "w", .dtype = "U8", .shape = {4}}}, {});
    const std::string bytes = "abcde";
    EXPECT_THROW(writer.write(std::as_bytes(std::span(bytes))), InternalError);
    EXPECT_THROW(writer.finish(), InternalError);
    EXPECT_TRUE(std::filesystem::exists(path));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(Safetensors, SoundHeaders) {
  EXPECT_TRUE(parse(file_of("{}", 0)).entries.empty());
  EXPECT_TRUE(parse(file_of("{}      ", 0)).entries.empty());
  EXPECT_EQ(parse(file_of(R"({"__metadata__":{"a":"b"}})", 0)).metadata.at("a"), "b");
  const auto header = parse(file_of(
      R"({"b":{"dtype":"U8","shape":[3],"data_offsets":[4,7]},"e":{"dtype":"F64","shape":[2,0],"data_offsets":[4,4]},)"
      R"("a":{"data_offsets":[0,4],"shape":[],"dtype":"F32"},"p":{"dtype":"F4","shape":[2],"data_offsets":[7,8]}})",
      8));
  ASSERT_EQ(header.entries.size(), 4U);
  EXPECT_EQ(header.entries[0].name + header.entries[1].name + header.entries[2].name, "aeb");
}

TEST(Safetensors, EveryFaultHasItsLine) {
  const std::string good = R"("a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]})";
  const auto one = [](const std::string& inside) { return file_of("{\"a\":{" + inside + "}}", 4); };
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "at least 8 bytes: the file has 0"},
      {"1234567", "at least 8 bytes: the file has 7"},
      {std::string("\x10\0\0\0\0\0\0\0{}", 10), "a header of 16 bytes: the file ends after 2 of them"},
      {std::string(8, '\xff'), "a header of at most 100000000 bytes: it claims 18446744073709551615"},
      {std::string(8, '\0'), "a header that starts with '{': it does not"},
      {file_of(" {}", 0), "a header that starts with '{': it does not"},
      {file_of("{\"a\":", 0), "a JSON header: it stops being JSON at byte 6"},
      {file_of("{}{}", 0), "a JSON header: it stops being JSON at byte 3"},
      {file_of("{" + good + "," + good + "}", 4), "every name once: \"a\" twice"},
      {one(R"("dtype":"U8","dtype":"U8","shape":[4],"data_offsets":[0,4])"),
       "every key once: \"dtype\" twice in tensor \"a\""},
      {one(R"("dtype":"U8","shape":[4])"), "dtype, shape and two data_offsets: others in tensor \"a\""},
      {one(R"("dtype":"U8","shape":[4],"data_offsets":[0,4,4])"), "two data_offsets: others in tensor \"a\""},
      {one(R"("dtype":"U8","shape":[-4],"data_offsets":[0,4])"),
       "another value at key \"shape\" of tensor \"a\""},
      {one(R"("dtype":"U8","shape":[4.0],"data_offsets":[0,4])"), "another value at key \"shape\""},
      {one(R"("dtype":"U8","shape":[[4]],"data_offsets":[0,4])"), "another value at key \"shape\""},
      {one(R"("dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,4])"),
       "another value at key \"shape\""},
      {one(R"("dtype":["U8"],"shape":[4],"data_offsets":[0,4])"), "another value at key \"dtype\""},
      {one(R"("dtype":"U8","shape":["4"],"data_offsets":[0,4])"), "another value at key \"shape\""},
      {one(R"("dtype":"U8","shape":[4],"data_offsets":[0,4],"extra":1)"), "another value at key \"extra\""},
      {one(R"("dtype":null,"shape":[4],"data_offsets":[0,4])"), "another value at key \"dtype\""},
      {one(R"("dtype":{"a":"b"})"), "another value at key \"dtype\""},
      {file_of(R"({"a":[]})", 0), "another value at key \"a\""},
      {file_of(R"({"__metadata__":{"a":1}})", 0), "another value at key \"a\" of the metadata"},
      {one(R"("dtype":"X8","shape":[4],"data_offsets":[0,4])"), "a known dtype: \"X8\" of tensor \"a\""},
      {one(R"("dtype":"U8","shape":[3],"data_offsets":[1,4])"),
       "tensors one after the other: \"a\" at bytes 1 to 4, expected to start at 0"},
      {one(R"("dtype":"U8","shape":[3],"data_offsets":[0,4])"), "tensor \"a\" has 4, expected 3"},
      {one(R"("dtype":"F4","shape":[7],"data_offsets":[0,4])"), "tensor \"a\" has 4, expected no such size"},
      {one(R"("dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,4])"), "expected no such size"},
      {one(R"("dtype":"U8","shape":[2],"data_offsets":[0,2])"), "a buffer of 2 bytes: the file holds 4"},
      {file_of("{" + good + R"(,"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})", 6),
       "tensors one after the other: \"b\" at bytes 2 to 6, expected to start at 4"},
      {file_of("{" + good + "}", 3), "a buffer of 4 bytes: the file holds 3"},
  };
  for (const auto& [bytes, expected] : cases) {
    const auto error = error_text([&] { parse(bytes); });
    EXPECT_TRUE(error.starts_with("[formats.safetensors] ")) << error;
    EXPECT_TRUE(error.ends_with(" (f.safetensors; not a sound safetensors file)")) << error;
    EXPECT_NE(error.find(expected), std::string::npos) << error << "\nexpected " << expected;
  }
}

TEST(Safetensors, ReaderNamesTheFile) {
  const TemporaryFolder folder("tessera-safetensors");
  const auto path = folder.path() / "short.safetensors";
  write_file_atomic(path, "abc");
  EXPECT_EQ(error_text([&] { SafetensorsReader reader(path); }),
            "[formats.safetensors] at least 8 bytes: the file has 3 (" + path.string() +
                "; not a sound safetensors file)");
}

TEST(Safetensors, DtypeSizes) {
  EXPECT_EQ(dtype_size("F64"), 8U);
  EXPECT_EQ(dtype_size("BF16"), 2U);
  EXPECT_EQ(dtype_size("BOOL"), 1U);
  EXPECT_EQ(dtype_size("C64"), 8U);
  EXPECT_NE(error_text([] { dtype_size("float"); }).find("I64, U64): \"float\""), std::string::npos);
  EXPECT_EQ(error_text([] { dtype_size("F4"); }),
            "[formats.dtype_size] a dtype of whole bytes: F4 has 4 bits");
}

}  // namespace
}  // namespace tessera::formats
