// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/tfds.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/base/words.h"

namespace tessera::data {
namespace fs = std::filesystem;
namespace {

using Json = nlohmann::json;
constexpr const char* kTfds = "data.tfds";
constexpr const char* kUsualTemplate = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}";

/// A member of an object; null where it is none or has no such member.
const Json* member(const Json* json, const char* name) {
  if (json == nullptr || !json->is_object()) return nullptr;
  const auto found = json->find(name);
  return found == json->end() ? nullptr : &*found;
}

std::string text(const Json* json, const std::string& otherwise) {
  return json != nullptr && json->is_string() ? json->get<std::string>() : otherwise;
}

/// 64-bit integers are strings in protobuf's JSON. Nothing: neither.
std::optional<int64_t> number(const Json& json) {
  if (json.is_number_integer()) return json.get<int64_t>();
  if (!json.is_string()) return std::nullopt;
  return parse_number<int64_t>(json.get<std::string>());
}

Json parse(const std::string& content, const std::string& where) {
  Json json = Json::parse(content, nullptr, false);
  if (!json.is_object()) user_error({.where = kTfds, .problem = concat(where, " is not a JSON object")});
  return json;
}

std::string five_digits(size_t number) {
  std::array<char, 24> digits{};
  std::snprintf(digits.data(), digits.size(), "%05zu", number);
  return digits.data();
}

/// "5.1.0" -> {5, 1, 0}; nothing where it is no version.
std::optional<std::array<int64_t, 3>> version_of(const std::string& name) {
  std::array<int64_t, 3> version{};
  int used = 0;
  if (std::sscanf(name.c_str(), "%5ld.%5ld.%5ld%n", &version[0], &version[1], &version[2], &used) != 3)
    return std::nullopt;
  if (static_cast<size_t>(used) != name.size()) return std::nullopt;
  return version;
}

std::vector<fs::path> folders_in(const FileSystem& files, const fs::path& folder) {
  std::vector<fs::path> folders;
  std::error_code ignored;
  for (const FolderEntry& entry : files.list(folder, ignored)) {
    if (entry.is_folder) folders.push_back(folder / entry.name);
  }
  std::sort(folders.begin(), folders.end());
  return folders;
}

bool has_info(const FileSystem& files, const fs::path& folder) {
  return files.is_file(folder / "dataset_info.json");
}

fs::path newest_version(const FileSystem& files, const fs::path& folder) {
  fs::path newest;
  std::optional<std::array<int64_t, 3>> best;
  for (const auto& path : folders_in(files, folder)) {
    const auto version = version_of(path.filename().string());
    if (!version || !has_info(files, path) || (best && *version < *best)) continue;
    best = version;
    newest = path;
  }
  return newest;
}

}  // namespace

TfdsInfo parse_tfds_info(const std::string& content, const std::string& where) {
  const Json json = parse(content, where);
  TfdsInfo info{text(member(&json, "name"), ""), text(member(&json, "fileFormat"), "tfrecord"), {}};
  const Json* splits = member(&json, "splits");
  if (splits == nullptr || !splits->is_array())
    user_error({.where = kTfds, .problem = concat(where, " has no list of splits")});
  for (const auto& item : *splits) {
    TfdsInfo::Split split{
        text(member(&item, "name"), ""), text(member(&item, "filepathTemplate"), kUsualTemplate), {}};
    const Json* lengths = member(&item, "shardLengths");
    if (split.name.empty() || lengths == nullptr || !lengths->is_array()) {
      user_error({.where = kTfds, .problem = concat(where, " has a split without name or shardLengths")});
    }
    for (const auto& length : *lengths) {
      const auto value = number(length);
      if (!value || *value < 0)
        user_error({.where = kTfds, .problem = concat(where, " has shardLengths that are not numbers")});
      split.shard_lengths.push_back(*value);
    }
    info.splits.push_back(std::move(split));
  }
  return info;
}

TfdsFeatures parse_tfds_features(const std::string& content, const std::string& where) {
  const Json json = parse(content, where);
  const Json* features = member(member(&json, "featuresDict"), "features");
  if (features == nullptr) features = member(&json, "content");  // before version 4.5 of TFDS
  if (features == nullptr || !features->is_object()) {
    user_error({.where = kTfds, .problem = concat(where, " has no dictionary of features")});
  }
  TfdsFeatures found;
  for (const auto& [name, feature] : features->items()) {
    const std::string kind = text(member(&feature, "pythonClassName"), text(member(&feature, "type"), ""));
    if (kind.ends_with(".Image")) found.images.push_back(name);
    if (kind.ends_with(".ClassLabel")) found.labels.push_back(name);
  }
  return found;
}

std::string tfds_file_name(const TfdsInfo& info, const TfdsInfo::Split& split, size_t shard) {
  std::string name = split.file_template;
  const std::string index = five_digits(shard), count = five_digits(split.shard_lengths.size());
  replace_all(name, "{SHARD_X_OF_Y}", concat(index, "-of-", count));
  replace_all(name, "{SHARD_INDEX}", index);
  replace_all(name, "{NUM_SHARDS}", count);
  replace_all(name, "{FILEFORMAT}", info.file_format);
  replace_all(name, "{SPLIT}", split.name);
  replace_all(name, "{DATASET}", info.name);
  return name;
}

fs::path find_tfds_version(const FileSystem& files, const fs::path& folder) {
  if (has_info(files, folder)) return folder;
  if (fs::path newest = newest_version(files, folder); !newest.empty()) return newest;
  std::vector<std::string> configurations;
  fs::path newest;
  for (const auto& path : folders_in(files, folder)) {
    fs::path version = newest_version(files, path);
    if (version.empty()) continue;
    configurations.push_back(path.filename().string());
    newest = std::move(version);
  }
  if (configurations.size() > 1) {
    user_error(
        {.where = kTfds,
         .problem = concat(folder.string(), " has several configurations: ", join(configurations, ", ")),
         .hint = "add one of them to the path"});
  }
  return newest;
}

}  // namespace tessera::data
