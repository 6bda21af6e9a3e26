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
      {"", "the file has 0 bytes: expected at least 8"},
      {"1234567", "the file has 7 bytes: expected at least 8"},
      {std::string("\x10\0\0\0\0\0\0\0{}", 10),
       "the file ends after 2 bytes of the header: expected 16 bytes"},
      {std::string(8, '\xff'), "the header claims 18446744073709551615 bytes: expected at most 100000000"},
      {std::string(8, '\0'), "the header does not start with '{'"},
      {file_of(" {}", 0), "the header does not start with '{'"},
      {file_of("{\"a\":", 0), "the header is not valid JSON at byte 6"},
      {file_of("{}{}", 0), "the header is not valid JSON at byte 3"},
      {file_of("{" + good + "," + good + "}", 4), "the name \"a\" occurs twice"},
      {one(R"("dtype":"U8","dtype":"U8","shape":[4],"data_offsets":[0,4])"),
       "the key \"dtype\" occurs twice in tensor \"a\""},
      {one(R"("dtype":"U8","shape":[4])"),
       "tensor \"a\" has other keys: expected dtype, shape and two data_offsets"},
      {one(R"("dtype":"U8","shape":[4],"data_offsets":[0,4,4])"),
       "tensor \"a\" has other keys: expected dtype, shape and two data_offsets"},
      {one(R"("dtype":"U8","shape":[-4],"data_offsets":[0,4])"),
       "unexpected value at key \"shape\" of tensor \"a\""},
      {one(R"("dtype":"U8","shape":[4.0],"data_offsets":[0,4])"), "unexpected value at key \"shape\""},
      {one(R"("dtype":"U8","shape":[[4]],"data_offsets":[0,4])"), "unexpected value at key \"shape\""},
      {one(R"("dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,4])"),
       "unexpected value at key \"shape\""},
      {one(R"("dtype":["U8"],"shape":[4],"data_offsets":[0,4])"), "unexpected value at key \"dtype\""},
      {one(R"("dtype":"U8","shape":["4"],"data_offsets":[0,4])"), "unexpected value at key \"shape\""},
      {one(R"("dtype":"U8","shape":[4],"data_offsets":[0,4],"extra":1)"),
       "unexpected value at key \"extra\""},
      {one(R"("dtype":null,"shape":[4],"data_offsets":[0,4])"), "unexpected value at key \"dtype\""},
      {one(R"("dtype":{"a":"b"})"), "unexpected value at key \"dtype\""},
      {file_of(R"({"a":[]})", 0), "unexpected value at key \"a\""},
      {file_of(R"({"__metadata__":{"a":1}})", 0), "unexpected value at key \"a\" of the metadata"},
      {one(R"("dtype":"X8","shape":[4],"data_offsets":[0,4])"), "tensor \"a\" has the unknown dtype \"X8\""},
      {one(R"("dtype":"U8","shape":[3],"data_offsets":[1,4])"),
       "tensor \"a\" is at bytes 1 to 4: expected a start at 0, where the tensor before ends"},
      {one(R"("dtype":"U8","shape":[3],"data_offsets":[0,4])"),
       "tensor \"a\" has 4 bytes, which do not fit its dtype and shape: expected 3"},
      {one(R"("dtype":"F4","shape":[7],"data_offsets":[0,4])"),
       "tensor \"a\" has 4 bytes, which do not fit its dtype and shape"},
      {one(R"("dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,4])"),
       "tensor \"a\" has 4 bytes, which do not fit its dtype and shape"},
      {one(R"("dtype":"U8","shape":[2],"data_offsets":[0,2])"),
       "the file has 4 bytes of tensors: expected 2 bytes"},
      {file_of("{" + good + R"(,"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})", 6),
       "tensor \"b\" is at bytes 2 to 6: expected a start at 4, where the tensor before ends"},
      {file_of("{" + good + "}", 3), "the file has 3 bytes of tensors: expected 4 bytes"},
  };
  for (const auto& [bytes, expected] : cases) {
    const auto error = error_text([&] { parse(bytes); });
    EXPECT_TRUE(error.starts_with("[formats.safetensors] ")) << error;
    EXPECT_TRUE(error.starts_with("[formats.safetensors] bad safetensors file f.safetensors: ")) << error;
    EXPECT_NE(error.find(expected), std::string::npos) << error << "\nexpected " << expected;
  }
}

TEST(Safetensors, ReaderNamesTheFile) {
  const TemporaryFolder folder("tessera-safetensors");
  const auto path = folder.path() / "short.safetensors";
  write_file_atomic(path, "abc");
  EXPECT_EQ(error_text([&] { SafetensorsReader reader(path); }),
            concat("[formats.safetensors] bad safetensors file ", path.string(),
                   ": the file has 3 bytes: expected at least 8"));
}

TEST(Safetensors, DtypeSizes) {
  EXPECT_EQ(dtype_size("F64"), 8U);
  EXPECT_EQ(dtype_size("BF16"), 2U);
  EXPECT_EQ(dtype_size("BOOL"), 1U);
  EXPECT_EQ(dtype_size("C64"), 8U);
  EXPECT_NE(error_text([] {
              dtype_size("float");
            }).find("unknown dtype \"float\": expected a dtype of safetensors: BOOL, "),
            std::string::npos);
  EXPECT_EQ(error_text([] { dtype_size("F4"); }),
            "[formats.dtype_size] dtype F4 has 4 bits: expected a dtype of whole bytes");
}

}  // namespace
}  // namespace tessera::formats
