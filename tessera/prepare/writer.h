// SPDX-License-Identifier: Apache-2.0
// The forms a data set is written in: one Writer each, fed with samples in their final order.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tessera::prepare {

enum class Form { kFolder, kWds, kZip, kTfrecord };

/// "folder", "wds", "zip", "tfrecord". Errors: UserError that names the nearest.
Form form_of(const std::string& name);
const char* form_name(Form form);

/// A sample on its way into an archive.
struct Sample {
  std::string path;    // "n01440764/n01440764_10026.JPEG", unique within the split
  std::string key;     // "n01440764_10026", unique within the split, without '.' and '/'
  std::string ending;  // "jpg" or "png", by content
  int64_t label = 0;
  std::string file;  // the image file's bytes
};

/// A sample as its bytes will lie in an archive, wherever they begin.
struct Block {
  Sample sample;  // without its file
  std::string bytes;
  uint64_t image_at = 0, image_size = 0;  // of the image file within `bytes`
  uint32_t crc32 = 0;                     // of the image file; zip alone
};

/// What was made durable at once: a shard, or a stretch of a zip or a folder.
struct SealedPart {
  std::string split;
  int64_t end = 0;  // position in the split's order after its last sample
  int64_t samples = 0, jpegs = 0;
  uint64_t bytes = 0;                 // of the blocks
  std::vector<std::string> left_out;  // names of samples that could not be read
};

struct Split {
  std::string name;
  std::vector<std::string> classes;
  std::vector<SealedPart> parts;  // already durable
};

/// Parts that hold samples: where all that followed were left out, the last holds none.
size_t shard_count(const Split& split);

/// One thread, except for frame(). Errors: UserError with path and reason, where a disk is full with what to
/// do. What was sealed outlives a crash at any moment.
class Writer {
 public:
  virtual ~Writer() = default;
  /// Pure: any number of threads at once.
  virtual Block frame(Sample sample) const = 0;
  /// Compares what lies on disk with the parts an earlier run wrote; `closed`: it also ended the split.
  /// Errors: UserError that names the first file that is missing or has another size.
  virtual void check(const Split& split, bool closed) const = 0;
  /// Begins a split, or goes on after its parts: what lies behind them is written anew.
  virtual void open(const Split& split) = 0;
  virtual void append(const Block& block) = 0;
  /// Makes all that was appended durable.
  virtual void seal() = 0;
  /// Ends the split; all of it was sealed. May be repeated after a crash.
  virtual void close() = 0;
  /// After the last split: what describes the whole.
  virtual void finish(const std::vector<Split>& splits) = 0;
};

struct WriterOptions {
  std::string name;                 // of the data set, in the names of shards
  std::string version = "1.0.0";    // tfrecord
  bool dali_index = false;          // wds: SHARD.idx beside each shard
  std::filesystem::path index_dir;  // wds: INDEX_DIR/SPLIT/idx_N.txt; empty: none
};

/// DEST/SPLIT/CLASS/IMAGE.
std::unique_ptr<Writer> folder_writer(const std::filesystem::path& folder);
/// DEST/[NAME-]SPLIT-000000.tar ... of KEY.cls and KEY.jpg (or png), as WebDataset reads them; classes.txt.
std::unique_ptr<Writer> wds_writer(const std::filesystem::path& folder, const WriterOptions& options);
/// DEST/SPLIT.zip of CLASS/IMAGE, stored, and SPLIT_map.txt of "CLASS/IMAGE<tab>LABEL"; classes.txt.
std::unique_ptr<Writer> zip_writer(const std::filesystem::path& folder);
/// DEST/NAME-SPLIT.tfrecord-00000-of-00012 of Example protos {image, label, file_name}, dataset_info.json,
/// features.json, label.labels.txt: the layout of TensorFlow Datasets.
std::unique_ptr<Writer> tfds_writer(const std::filesystem::path& folder, const WriterOptions& options);

}  // namespace tessera::prepare
