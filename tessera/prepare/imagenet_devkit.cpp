// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>
#include <span>
#include <string_view>

#include "tessera/base/error.h"
#include "tessera/base/file.h"
#include "tessera/base/words.h"
#include "tessera/formats/gzip_stream.h"
#include "tessera/formats/matlab.h"
#include "tessera/formats/tar.h"
#include "tessera/prepare/imagenet.h"

namespace tessera::prepare {
namespace fs = std::filesystem;
namespace {

constexpr const char* kImagenetDevkit = "prepare.imagenet_devkit";
constexpr const char* kMeta = "data/meta.mat";
constexpr const char* kTruth = "data/ILSVRC2012_validation_ground_truth.txt";
constexpr uint64_t kMostBytes = uint64_t{1} << 26;     // of a member; the kit's largest has 0.3 MiB
constexpr uint64_t kRestartEvery = uint64_t{1} << 40;  // the kit is read once, from its beginning

struct Members {
  std::string meta, truth;
};

Members find_members(const fs::path& path) {
  const FileReader file(path);
  std::unique_ptr<formats::ByteStream> stream;
  if (formats::is_gzip_file(file)) {
    stream = std::make_unique<formats::GzipStream>(file, kRestartEvery, nullptr);
  } else {
    stream = std::make_unique<formats::FileStream>(file);
  }
  formats::TarReader tar(*stream, path.string());
  Members found;
  while (const auto member = tar.next()) {
    if (member->name.ends_with(kMeta)) found.meta = tar.content(kMostBytes);
    if (member->name.ends_with(kTruth)) found.truth = tar.content(kMostBytes);
  }
  for (const auto& [name, content] : {std::pair(kMeta, &found.meta), std::pair(kTruth, &found.truth)}) {
    if (!content->empty()) continue;
    user_error({.where = kImagenetDevkit,
                .problem = concat(path.string(), " has no ", name),
                .expected = "a development kit such as ILSVRC2012_devkit_t12.tar.gz"});
  }
  return found;
}

using Array = formats::MatArray;

const std::vector<Array>& field(const Array& synsets, const char* name, Array::Kind kind,
                                const std::string& where) {
  const auto found = synsets.fields.find(name);
  const bool right = found != synsets.fields.end() && !found->second.empty() &&
                     std::all_of(found->second.begin(), found->second.end(), [&](const Array& value) {
                       return value.kind == kind && (kind == Array::Kind::kText || value.numbers.size() == 1);
                     });
  if (!right)
    user_error({.where = kImagenetDevkit, .problem = concat(where, " has synsets without the field ", name)});
  return found->second;
}

/// Synsets without children are classes; the others are their ancestors in WordNet.
std::map<int64_t, std::string> read_meta(const std::string& bytes, const std::string& where) {
  const auto variables =
      formats::parse_matlab({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}, where);
  const auto synsets = variables.find("synsets");
  if (synsets == variables.end())
    user_error({.where = kImagenetDevkit, .problem = concat(where, " has no variable synsets")});
  const auto& ids = field(synsets->second, "ILSVRC2012_ID", Array::Kind::kNumbers, where);
  const auto& wnids = field(synsets->second, "WNID", Array::Kind::kText, where);
  const auto& children = field(synsets->second, "num_children", Array::Kind::kNumbers, where);
  std::map<int64_t, std::string> out;
  for (size_t i = 0; i < ids.size(); ++i) {
    const double id = ids[i].numbers[0];
    if (children[i].numbers[0] != 0) continue;
    if (!(id >= 1 && id < 1e9) || !out.emplace(static_cast<int64_t>(id), wnids[i].text).second) {
      user_error({.where = kImagenetDevkit,
                  .problem = concat(where, " has a class with the ILSVRC2012_ID ", id),
                  .expected = "unique whole numbers from 1"});
    }
  }
  return out;
}

std::vector<int64_t> read_truth(std::string_view text, const std::string& where) {
  std::vector<int64_t> ids;
  while (!text.empty()) {
    std::string_view line = take_until(text, "\n");
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    const auto id = parse_number<int64_t>(line);
    if (!id) {
      user_error(
          {.where = kImagenetDevkit,
           .problem = concat(where, " has '", escape(line.substr(0, 40)), "' in line ", ids.size() + 1),
           .expected = "a whole number"});
    }
    ids.push_back(*id);
  }
  return ids;
}

}  // namespace

std::vector<std::string> ImagenetDevkit::wnids() const {
  std::vector<std::string> out;
  for (const auto& [id, wnid] : wnid_of_id) out.push_back(wnid);
  std::sort(out.begin(), out.end());
  return out;
}

ImagenetDevkit read_imagenet_devkit(const fs::path& path) {
  const Members members = find_members(path);
  ImagenetDevkit kit;
  kit.wnid_of_id = read_meta(members.meta, path.string() + ": " + kMeta);
  const std::string where = path.string() + ": " + kTruth;
  kit.val_ids = read_truth(members.truth, where);
  for (size_t i = 0; i < kit.val_ids.size(); ++i) {
    if (kit.wnid_of_id.contains(kit.val_ids[i])) continue;
    user_error({.where = kImagenetDevkit,
                .problem = concat(where, " has the class ", kit.val_ids[i], " in line ", i + 1),
                .expected = "a class of meta.mat"});
  }
  return kit;
}

}  // namespace tessera::prepare
