// SPDX-License-Identifier: Apache-2.0
// TFRecord files of tf.train.Example, in the layout of TensorFlow Datasets (tfds.builder_from_directory).
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/text.h"
#include "tessera/formats/tfrecord.h"
#include "tessera/prepare/sharded_writer.h"

namespace tessera::prepare {
namespace fs = std::filesystem;
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kFeatures = "tensorflow_datasets.core.features.";

void put_varint(std::string& out, uint64_t value) {
  while (value >= 0x80) {
    out += static_cast<char>(value | 0x80);
    value >>= 7;
  }
  out += static_cast<char>(value);
}

/// A field of bytes or of a message: tag, length, content.
void put_field(std::string& out, int number, std::string_view content) {
  put_varint(out, static_cast<uint64_t>(number) << 3 | 2);
  put_varint(out, content.size());
  out += content;
}

std::string field(int number, std::string_view content) {
  std::string out;
  put_field(out, number, content);
  return out;
}

enum ListKind { kBytesList = 1, kInt64List = 3 };

/// Features.feature[key] = Feature{list of one value}: an entry of a map is a message of key and value.
void put_feature(std::string& features, std::string_view key, ListKind kind, std::string_view value) {
  std::string entry = field(1, key);
  put_field(entry, 2, field(kind, field(1, value)));
  put_field(features, 1, entry);
}

/// Keys in byte order, as TensorFlow Datasets writes them.
std::string example(const Sample& sample) {
  std::string label, features;
  put_varint(label, static_cast<uint64_t>(sample.label));
  put_feature(features, "file_name", kBytesList, sample.path);
  put_feature(features, "image", kBytesList, sample.file);
  put_feature(features, "label", kInt64List, label);
  return field(1, features);
}

Json features_json(const std::vector<Split>& splits) {
  int64_t samples = 0, jpegs = 0;
  for (const Split& split : splits) {
    for (const SealedPart& part : split.parts) {
      samples += part.samples;
      jpegs += part.jpegs;
    }
  }
  Json image = {{"shape", {{"dimensions", {"-1", "-1", "3"}}}}, {"dtype", "uint8"}};
  if (jpegs == samples) image["encodingFormat"] = "jpeg";
  if (jpegs == 0) image["encodingFormat"] = "png";
  const std::string start = kFeatures;
  Json features;
  features["file_name"] = {{"pythonClassName", start + "text_feature.Text"}, {"text", Json::object()}};
  features["image"] = {{"pythonClassName", start + "image_feature.Image"}, {"image", image}};
  features["label"] = {{"pythonClassName", start + "class_label_feature.ClassLabel"},
                       {"classLabel", {{"numClasses", std::to_string(splits.at(0).classes.size())}}}};
  return {{"pythonClassName", start + "features_dict.FeaturesDict"},
          {"featuresDict", {{"features", features}}}};
}

Json split_json(const Split& split) {
  Json lengths = Json::array();
  uint64_t bytes = 0;
  for (const SealedPart& part : split.parts) {
    if (part.samples > 0) lengths.push_back(std::to_string(part.samples));
    bytes += part.bytes;
  }
  return {{"filepathTemplate", "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"},
          {"name", split.name},
          {"numBytes", std::to_string(bytes)},
          {"shardLengths", lengths}};
}

class TfdsWriter : public ShardedWriter {
 public:
  TfdsWriter(fs::path folder, WriterOptions options) : ShardedWriter(std::move(folder), std::move(options)) {}

  Block frame(Sample sample) const override {
    Block block;
    block.image_size = sample.file.size();
    block.bytes = formats::tfrecord(example(sample));
    return without_file(std::move(block), std::move(sample));
  }

  /// A run that ended while it gave the shards their last names left some of both.
  void check(const Split& split, bool closed) const override {
    const std::string count = of_count(shard_count(split));
    size_t shard = 0;
    for (const SealedPart& part : split.parts) {
      if (part.samples == 0) continue;
      const fs::path begun = folder_ / shard_name(split.name, shard++), ended = begun.string() + count;
      check_written(closed || (fs::exists(ended) && !fs::exists(begun)) ? ended : begun, part.bytes);
    }
  }

  void append(const Block& block) override {
    if (!file_) file_.emplace(folder_ / shard_name(split_, shard_));
    file_->append(block.bytes);
  }

  void seal() override {
    if (file_) publish_shard();
  }

  /// Only now is the number of shards known, which is part of every name.
  void close() override {
    for (size_t i = 0; i < shard_; ++i) {
      const fs::path name = folder_ / shard_name(split_, i);
      if (fs::exists(name)) fs::rename(name, name.string() + of_count(shard_));
    }
    sync_folder(folder_);
  }

  void finish(const std::vector<Split>& splits) override {
    Json info = {{"citation", ""},           {"description", "Written by tessera data pack."},
                 {"fileFormat", "tfrecord"}, {"name", options_.name},
                 {"splits", Json::array()},  {"version", options_.version}};
    for (const Split& split : splits) info["splits"].push_back(split_json(split));
    write_published(folder_ / "label.labels.txt", join(splits.at(0).classes, "\n") + "\n");
    write_published(folder_ / "features.json", features_json(splits).dump(2) + "\n");
    write_published(folder_ / "dataset_info.json", info.dump(2) + "\n");
  }

 private:
  std::string shard_name(const std::string& split, size_t shard) const {
    std::array<char, 48> number{};
    std::snprintf(number.data(), number.size(), "-%05zu", shard);
    return concat(options_.name, "-", split, ".tfrecord", number.data());
  }
  static std::string of_count(size_t shards) {
    std::array<char, 48> count{};
    std::snprintf(count.data(), count.size(), "-of-%05zu", shards);
    return count.data();
  }
};

}  // namespace

std::unique_ptr<Writer> tfds_writer(const fs::path& folder, const WriterOptions& options) {
  return std::make_unique<TfdsWriter>(folder, options);
}

}  // namespace tessera::prepare
