// SPDX-License-Identifier: Apache-2.0
// The folder layout of TensorFlow Datasets: NAME/[CONFIG/]VERSION/ with dataset_info.json, features.json,
// label names and shards. Pure but for the files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "tessera/base/byte_source.h"

namespace tessera::data {

/// What dataset_info.json says.
struct TfdsInfo {
  struct Split {
    std::string name, file_template;  // "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
    std::vector<int64_t> shard_lengths;
  };
  std::string name, file_format;
  std::vector<Split> splits;
};

/// The features of one kind in features.json, in order of their names.
struct TfdsFeatures {
  std::vector<std::string> images, labels;
};

/// `where` names the file in messages. Errors: UserError when the text is not what the file should hold.
TfdsInfo parse_tfds_info(const std::string& json, const std::string& where);
TfdsFeatures parse_tfds_features(const std::string& json, const std::string& where);

/// "mnist-train.tfrecord-00000-of-00001" of shard 0.
std::string tfds_file_name(const TfdsInfo& info, const TfdsInfo::Split& split, size_t shard);

/// The folder with dataset_info.json: `folder` itself, its newest version, or that of its only configuration;
/// empty where it is no TFDS folder. Errors: UserError when there are several configurations.
std::filesystem::path find_tfds_version(const FileSystem& files, const std::filesystem::path& folder);

}  // namespace tessera::data
