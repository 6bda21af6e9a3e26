// SPDX-License-Identifier: Apache-2.0
// WebDataset: shards of tar files, plain or packed by gzip, read in place.
#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/data/class_names.h"
#include "tessera/data/in_parallel.h"
#include "tessera/data/indexed_shards.h"
#include "tessera/data/open_source.h"
#include "tessera/data/shard_list.h"
#include "tessera/data/wds_index.h"

namespace tessera::data {
namespace fs = std::filesystem;
namespace {

constexpr const char* kWdsSource = "data.open_wds";

bool is_tar_name(const std::string& name) {
  return name.ends_with(".tar") || name.ends_with(".tar.gz") || name.ends_with(".tgz");
}

class WdsSource : public IndexedSource {
 public:
  WdsSource(std::vector<fs::path> shards, OpenedIndex opened, const FileSystem& files)
      : IndexedSource(std::move(opened)), archives_(std::move(shards), files) {}
  std::vector<int64_t> shard_starts() const override { return file_starts(); }
  Location location(int64_t i) const override {
    const IndexedSample sample = index().sample(i);
    return {archives_.path(sample.file).native(), sample.name, sample.offset};
  }

 private:
  std::string fetch(int64_t i) const override {
    const IndexedSample sample = index().sample(i);
    return read_sample(index(), *archives_.open(sample.file), sample);
  }
  const ArchiveFiles archives_;
};

/// "x.idx" beside the shard or in data.index_dir, or "idx_<number>.txt" in there or in its folder of the
/// split.
std::optional<fs::path> find_dali_index(const fs::path& shard, size_t number, const std::string& split,
                                        const SourceOptions& options) {
  const std::string name = shard.stem().string() + ".idx";
  std::vector<fs::path> places = {shard.parent_path() / name};
  if (!options.index_dir.empty() && options.index_dir != "beside" && options.index_dir != "none") {
    const fs::path folder = with_split(options.index_dir, split);
    for (const auto& place : {folder / split, folder}) {
      places.push_back(place / name);
      places.push_back(place / concat("idx_", number, ".txt"));
    }
  }
  const auto found = std::find_if(places.begin(), places.end(),
                                  [&](const fs::path& place) { return options.files->is_file(place); });
  return found == places.end() ? std::nullopt : std::optional(*found);
}

}  // namespace

std::unique_ptr<Source> open_wds(const std::string& list, const std::string& split,
                                 const SourceOptions& options) {
  const ShardKind kind{kWdsSource, "tar or tar.gz files", is_tar_name};
  const FileSystem& files = *options.files;
  const auto shards = find_shards(files, list, split, kind);
  const std::string same = same_as_training(files, list, split, shards, kind);
  if (!same.empty() && options.warn) options.warn(same);
  const auto class_file = find_class_file(options, shards.front().parent_path());
  IndexRequest request = shard_request("wds", shards, split,
                                       concat("label_offset ", options.label_offset, "\nimage_key ",
                                              options.image_key, "\nlabel_key ", options.label_key),
                                       class_file);
  std::vector<WdsShard> numbered(shards.size());
  in_parallel(shards.size(), kInputThreads, [&](size_t i) {
    numbered[i] = {shards[i], static_cast<uint32_t>(i), find_dali_index(shards[i], i, split, options),
                   &files};
  });
  for (const auto& shard : numbered) {
    if (shard.dali_index) request.inputs.push_back(*shard.dali_index);
  }
  request.build = [&](IndexBuilder& builder) {
    const LabelReader labels(class_file ? read_class_names(files, *class_file) : std::vector<std::string>(),
                             options.label_offset);
    const WdsKeys keys = wds_keys(options);
    std::vector<LeftOut> parts(shards.size());
    build_from_shards(
        shards, labels.classes(),
        [&](size_t i, IndexBuilder& part) { index_wds_shard(numbered[i], keys, labels, part, parts[i]); },
        builder);
    LeftOut left_out;
    for (const LeftOut& part : parts) left_out.append(part);
    const std::string lost =
        left_out.count() == 0
            ? ""
            : concat(left_out.count(), left_out.count() == 1 ? " member belongs" : " members belong",
                     " to no sample: ", left_out.text(),
                     "; the first dot of a file's name ends the name of its sample, and its members are ",
                     keys.image.empty() ? ".jpg, .jpeg or .png" : "." + keys.image, " and ",
                     keys.label.empty() ? ".cls or .json" : "." + keys.label);
    if (builder.size() == 0) {
      user_error({.where = kWdsSource,
                  .problem = concat(shards.size(), " shards have no samples, the first is ",
                                    shards.front().string(), lost.empty() ? "" : concat(" (", lost, ")"))});
    }
    if (!lost.empty()) builder.note(concat("[", kWdsSource, "] ", lost));
  };
  OpenedIndex opened = open_index(request, options);
  warn_of_numeric_names(opened.index.classes(), kWdsSource, /*from_folders=*/false, options);
  return std::make_unique<WdsSource>(shards, std::move(opened), files);
}

}  // namespace tessera::data
