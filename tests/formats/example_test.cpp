// SPDX-License-Identifier: Apache-2.0
#include "tessera/formats/example.h"

#include <gtest/gtest.h>

#include "tessera/formats/tfrecord.h"
#include "tests/data/shared_data.h"
#include "tests/error_text.h"

namespace tessera::formats {
namespace {

std::string varint(uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  return out + static_cast<char>(value);
}
std::string field(uint64_t number, const std::string& bytes) {
  return varint(number << 3 | 2) + varint(bytes.size()) + bytes;
}
/// An entry of the map; `list` is the encoded BytesList (kind 1), FloatList (2) or Int64List (3).
std::string entry(const std::string& name, uint64_t kind, const std::string& list) {
  return field(1, field(1, name) + field(2, field(kind, list)));
}
std::string example(const std::string& entries) { return field(1, entries); }

std::vector<Feature> read(const std::string& bytes) {
  WholeRecord record(std::as_bytes(std::span(bytes)));
  return read_example(record, "record 3");
}

TEST(Example, BytesFloatsAndIntegers) {
  const std::string bytes =
      example(entry("image", 1, field(1, "picture") + field(1, "second")) +
              entry("packed", 3, field(1, varint(300) + varint(4))) +
              entry("single", 3, "\x08" + varint(static_cast<uint64_t>(-2))) +
              entry("floats", 2, field(1, std::string(12, '\0'))) + entry("empty", 3, ""));
  const auto features = read(bytes);
  ASSERT_EQ(features.size(), 5U);
  const Feature& image = features[0];
  EXPECT_EQ(image.kind, Feature::Kind::kBytes);
  EXPECT_EQ(image.count, 2U);
  EXPECT_EQ(bytes.substr(image.offset, image.size), "picture");
  EXPECT_EQ(find_feature(features, "packed")->integer, 300);
  EXPECT_GT(find_feature(features, "packed")->count, 1U);
  EXPECT_EQ(find_feature(features, "single")->integer, -2);
  EXPECT_EQ(find_feature(features, "single")->count, 1U);
  EXPECT_EQ(find_feature(features, "floats")->count, 3U);
  EXPECT_EQ(find_feature(features, "empty")->count, 0U);
  EXPECT_EQ(find_feature(features, "none"), nullptr);
}

TEST(Example, TheLastOfANameCountsAndUnknownFieldsArePassedOver) {
  const std::string bytes =
      varint(9 << 3 | 0) + varint(7) + varint(10 << 3 | 1) + std::string(8, 'x') + varint(11 << 3 | 5) +
      std::string(4, 'x') +
      example(entry("label", 3, field(1, varint(1))) + entry("label", 3, field(1, varint(2))));
  EXPECT_EQ(find_feature(read(bytes), "label")->integer, 2);
}

TEST(Example, WhatIsNoneIsNamed) {
  EXPECT_EQ(error_text([&] { read("\xff\xff\xff"); }),
            "[formats.example] not a tf.train.Example: it has a number without an end at byte 0 (record 3)");
  EXPECT_EQ(error_text([&] { read("\x0a\x05zz"); }),
            "[formats.example] not a tf.train.Example: it has a field that is longer than its message at "
            "byte 2 (record 3)");
  EXPECT_EQ(error_text([&] { read("\x0b"); }),
            "[formats.example] not a tf.train.Example: it has a wire type that does not occur in an Example "
            "at byte 1 (record 3)");
  EXPECT_EQ(error_text([&] { read(std::string("\0\0", 2)); }),
            "[formats.example] not a tf.train.Example: it has field 0 at byte 1 (record 3)");
  const std::string whole = example(entry("image", 1, field(1, std::string(100, 'x'))));
  for (size_t size = 1; size < whole.size(); ++size)
    EXPECT_THROW(read(whole.substr(0, size)), UserError) << size;
}

TEST(Example, RecordsThatTensorFlowWrote) {
  TESSERA_SHARED_OR_SKIP(folder, "records");
  TfRecordReader reader(folder / "cifar10_train.tfrecord");
  int64_t records = 0;
  while (const auto record = reader.next()) {
    const auto features = read(*record);
    const Feature* image = find_feature(features, "image");
    ASSERT_NE(image, nullptr);
    EXPECT_EQ(record->substr(image->offset, 4), "\x89PNG");
    EXPECT_EQ(find_feature(features, "label")->kind, Feature::Kind::kIntegers);
    ++records;
  }
  EXPECT_GT(records, 100);
}

}  // namespace
}  // namespace tessera::formats
