// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/tfds.h"

#include <gtest/gtest.h>

#include "tests/error_text.h"

namespace tessera::data {
namespace {

std::string info_error(const std::string& json) {
  return error_text([&] { parse_tfds_info(json, "info.json"); });
}

TEST(Tfds, InfoOfAnyVersion) {
  const TfdsInfo info = parse_tfds_info(
      R"({"name": "mnist", "splits": [{"name": "train", "shardLengths": ["3", 4]},
          {"name": "test", "shardLengths": [], "filepathTemplate": "{SPLIT}-{SHARD_INDEX}-of-{NUM_SHARDS}.{FILEFORMAT}"}]})",
      "x");
  ASSERT_EQ(info.splits.size(), 2U);
  EXPECT_EQ(info.splits[0].shard_lengths, (std::vector<int64_t>{3, 4}));
  EXPECT_EQ(tfds_file_name(info, info.splits[0], 1), "mnist-train.tfrecord-00001-of-00002");
  EXPECT_EQ(tfds_file_name(info, info.splits[1], 0), "test-00000-of-00000.tfrecord");
}

TEST(Tfds, FeaturesOfAnyVersion) {
  const TfdsFeatures now = parse_tfds_features(
      R"({"featuresDict": {"features": {"b": {"pythonClassName": "x.Image"}, "a": {"pythonClassName": "x.Image"},
          "label": {"pythonClassName": "x.ClassLabel"}, "id": {"pythonClassName": "x.Text"}, "odd": 3}}})",
      "x");
  EXPECT_EQ(now.images, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(now.labels, std::vector<std::string>{"label"});
  const TfdsFeatures before =
      parse_tfds_features(R"({"type": "x", "content": {"image": {"type": "x.Image"}}})", "x");
  EXPECT_EQ(before.images, std::vector<std::string>{"image"});
}

TEST(Tfds, Errors) {
  EXPECT_EQ(info_error("["), "[data.tfds] info.json is not a JSON object");
  EXPECT_EQ(info_error("{}"), "[data.tfds] info.json has no list of splits");
  EXPECT_EQ(info_error(R"({"splits": [{"name": "train"}]})"),
            "[data.tfds] info.json has a split without name or shardLengths");
  for (const std::string length : {"-1", "\"x\"", "1.5", "null"}) {
    EXPECT_EQ(info_error(R"({"splits": [{"name": "train", "shardLengths": [)" + length + "]}]}"),
              "[data.tfds] info.json has shardLengths that are not numbers");
  }
  EXPECT_EQ(error_text([] { parse_tfds_features("{}", "features.json"); }),
            "[data.tfds] features.json has no dictionary of features");
}

}  // namespace
}  // namespace tessera::data
