// SPDX-License-Identifier: Apache-2.0
// Files of tf.train.Example records: the folders of TensorFlow Datasets, and any others.
#include <algorithm>
#include <regex>

#include "tessera/base/error.h"
#include "tessera/base/location.h"
#include "tessera/base/text.h"
#include "tessera/data/class_names.h"
#include "tessera/data/indexed_shards.h"
#include "tessera/data/open_source.h"
#include "tessera/data/shard_list.h"
#include "tessera/data/tfds.h"
#include "tessera/data/tfrecord_index.h"
#include "tessera/formats/tfrecord.h"

namespace tessera::data {
namespace fs = std::filesystem;
namespace {

constexpr const char* kTfrecordSource = "data.open_tfrecord";

/// "x.tfrecord", "x.tfrecord.gz", "x.tfrecord-00000-of-00010", "train-00000-of-01024".
bool is_record_name(const std::string& name) {
  static const std::regex kShard(".*-\\d{5}-of-\\d{5}(\\.gz)?");
  return name.find(".tfrecord") != std::string::npos || std::regex_match(name, kShard);
}

class TfRecordSource : public IndexedSource {
 public:
  TfRecordSource(std::vector<fs::path> files, ExampleKeys keys, OpenedIndex opened, const FileSystem& where)
      : IndexedSource(std::move(opened)), files_(std::move(files), where), keys_(std::move(keys)) {}
  /// "x.tfrecord-00000-of-00010[17]".
  std::string sample_name(int64_t i) const override {
    return concat(index().files()[index().sample(i).file], index().name(i));
  }
  std::vector<int64_t> shard_starts() const override { return file_starts(); }
  Location location(int64_t i) const override {
    const IndexedSample sample = index().sample(i);
    return {files_.path(sample.file).native(), sample.name, sample.offset};
  }

 private:
  std::string fetch(int64_t i) const override {
    const IndexedSample sample = index().sample(i);
    const auto file = files_.open(sample.file);
    std::string frame = read_sample(index(), *file, sample);
    const std::string where = concat(file->path().string(), index().name(i));
    formats::WholeRecord record(formats::record_payload(std::as_bytes(std::span(frame)), where));
    std::string problem;
    const auto features = formats::read_example(record, where);
    const formats::Feature* image = find_image(features, keys_, problem);
    if (image == nullptr) throw UserError(with_location(concat("[data.tfrecord] ", problem), where));
    frame.resize(formats::kRecordHeader + image->offset + image->size);
    frame.erase(0, formats::kRecordHeader + image->offset);
    return frame;
  }

  const ArchiveFiles files_;
  const ExampleKeys keys_;
};

/// The files of a split and how to read them.
struct RecordFiles {
  std::vector<fs::path> files;
  ExampleKeys keys;
  std::optional<fs::path> class_file;
  std::vector<int64_t> lengths;    // records of each file, where they are known
  std::vector<fs::path> sidecars;  // JSON files that were looked at
};

std::string choose_key(const std::string& wanted, const std::vector<std::string>& found,
                       const std::string& usual, const char* kind, const fs::path& file) {
  if (!wanted.empty()) return wanted;
  if (found.size() == 1 || std::find(found.begin(), found.end(), usual) != found.end()) {
    return found.size() == 1 ? found[0] : usual;
  }
  user_error(
      {.where = kTfrecordSource,
       .problem = concat(file.string(), " has ",
                         found.empty() ? "no feature" : concat("several features (", join(found, ", "), ")"),
                         " that could be ", kind),
       .hint = "set data.image_key and data.label_key"});
}

RecordFiles find_tfds(const fs::path& folder, const std::string& split, const SourceOptions& options) {
  const fs::path info_file = folder / "dataset_info.json", features_file = folder / "features.json";
  const TfdsInfo info = parse_tfds_info(options.files->read_whole(info_file), info_file.string());
  if (info.file_format != "tfrecord") {
    user_error({.where = kTfrecordSource,
                .problem = concat(info_file.string(), " names the format ", escape(info.file_format)),
                .expected = "tfrecord"});
  }
  RecordFiles found;
  found.sidecars = {info_file};
  TfdsFeatures features;
  if (options.files->exists(features_file)) {
    features = parse_tfds_features(options.files->read_whole(features_file), features_file.string());
    found.sidecars.push_back(features_file);
  } else {
    features = {{"image"}, {"label"}};
  }
  found.keys.image = choose_key(options.image_key, features.images, "image", "an Image", features_file);
  found.keys.label = choose_key(options.label_key, features.labels, "label", "a ClassLabel", features_file);
  const fs::path names = folder / (found.keys.label + ".labels.txt");
  found.class_file = find_class_file(options, folder);
  if (!found.class_file && options.files->is_file(names)) found.class_file = names;
  for (const auto& name : accepted_splits(split)) {
    for (const auto& candidate : info.splits) {
      if (candidate.name != name || !found.files.empty()) continue;
      found.lengths = candidate.shard_lengths;
      for (size_t i = 0; i < candidate.shard_lengths.size(); ++i) {
        found.files.push_back(folder / tfds_file_name(info, candidate, i));
      }
    }
  }
  if (found.files.empty()) {
    std::vector<std::string> splits;
    for (const auto& candidate : info.splits) splits.push_back(candidate.name);
    user_error({.where = kTfrecordSource,
                .problem = concat(info_file.string(), " has ",
                                  splits.empty() ? "no splits" : concat("the splits ", join(splits, ", "))),
                .expected = join(accepted_splits(split), " or ")});
  }
  return found;
}

RecordFiles find_files(const std::string& path, const std::string& split, const SourceOptions& options) {
  const FileSystem& files = *options.files;
  const bool whole_folder = files.is_folder(path);
  if (whole_folder) {
    const fs::path folder = (fs::absolute(path) / "").lexically_normal().parent_path();
    if (const fs::path version = find_tfds_version(files, folder); !version.empty())
      return find_tfds(version, split, options);
  }
  RecordFiles found;
  const ShardKind kind{kTfrecordSource, "TFRecord files", is_record_name};
  found.files = find_shards(files, path, split, kind);
  if (whole_folder) check_numbered(found.files, kTfrecordSource);
  const std::string same = same_as_training(files, path, split, found.files, kind);
  if (!same.empty() && options.warn) options.warn(same);
  found.keys = {options.image_key, options.label_key};
  found.class_file = find_class_file(options, found.files.front().parent_path());
  return found;
}

}  // namespace

std::unique_ptr<Source> open_tfrecord(const std::string& path, const std::string& split,
                                      const SourceOptions& options) {
  const RecordFiles found = find_files(path, split, options);
  IndexRequest request = shard_request("tfrecord", found.files, split,
                                       concat("label_offset ", options.label_offset, "\nimage_key ",
                                              found.keys.image, "\nlabel_key ", found.keys.label),
                                       found.class_file);
  request.inputs.insert(request.inputs.end(), found.sidecars.begin(), found.sidecars.end());
  request.build = [&](IndexBuilder& builder) {
    const LabelReader labels(
        found.class_file ? read_class_names(*options.files, *found.class_file) : std::vector<std::string>(),
        options.label_offset);
    const auto index_file = [&](size_t i, IndexBuilder& part) {
      index_tfrecord_file({found.files[i], static_cast<uint32_t>(i), options.files}, found.keys, labels,
                          part);
      if (i < found.lengths.size() && static_cast<int64_t>(part.size()) != found.lengths[i]) {
        part.note(concat("[", kTfrecordSource, "] ", found.files[i].string(), " has ", part.size(),
                         part.size() == 1 ? " record" : " records", ": expected ", found.lengths[i],
                         ", as dataset_info.json says"));
      }
    };
    build_from_shards(found.files, labels.classes(), index_file, builder);
    if (builder.size() == 0)
      user_error({.where = kTfrecordSource,
                  .problem = concat(found.files.size(), " files have no records, the first is ",
                                    found.files.front().string())});
  };
  OpenedIndex opened = open_index(request, options);
  warn_of_numeric_names(opened.index.classes(), kTfrecordSource, /*from_folders=*/false, options);
  return std::make_unique<TfRecordSource>(found.files, found.keys, std::move(opened), *options.files);
}

}  // namespace tessera::data
