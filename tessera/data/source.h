// SPDX-License-Identifier: Apache-2.0
// Where samples come from. A source is a fixed, indexed list of encoded samples; it never shuffles or
// augments.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/byte_source.h"
#include "tessera/formats/image.h"

namespace tessera::data {

using Image = formats::Image;

/// One sample as its source keeps it.
struct Stored {
  std::string file;  // the bytes of an image file (JPEG, PNG); empty where `pixels` holds the image
  Image pixels;      // of sources that keep plain pixels (idx, fake)
};

/// Where a sample lies: two samples with the same location are the same one. Views last as long as the
/// source.
struct Location {
  std::string_view file;  // absolute path of the archive, or of the folder that holds the image; "": no file
  std::string_view name;  // in there
  uint64_t offset = 0;    // bytes or samples from the start of an archive
};

/// Any number of threads may call the const functions at once.
class Source {
 public:
  virtual ~Source() = default;
  virtual int64_t size() const = 0;
  /// From 0; -1 where the sample is known to be broken.
  virtual int64_t label(int64_t index) const = 0;
  /// Fetches sample `index` without decoding it.
  /// Errors: UserError that names the sample (its file) and the reason.
  virtual Stored load(int64_t index) const = 0;
  /// "train/dress/0001.jpg", "train-images-idx3-ubyte.gz[17]".
  virtual std::string sample_name(int64_t index) const = 0;
  /// Class names in label order; may be numbers.
  virtual const std::vector<std::string>& classes() const = 0;
  /// Where each archive file starts in the list (the first at 0), for an order that reads a few at a time;
  /// empty where there are none.
  virtual std::vector<int64_t> shard_starts() const { return {}; }
  /// For the search for samples that two splits share (overlap.h); empty for sources without files.
  virtual Location location(int64_t /*index*/) const { return {}; }

  /// Loads and decodes the whole of sample `index`, converted to `channels` (1: luma, 3: RGB).
  /// Errors: as load(), and on bytes that are no image.
  Image read(int64_t index, int64_t channels) const;
};

/// How to read a source; each kind looks at its own.
struct SourceOptions {
  int64_t fake_image_size = 224, fake_channels = 3, fake_classes = 1000;
  /// Where index files lie: a folder ("{split}" in it is replaced), "beside" for the data's own folder,
  /// "none" to make none, "" for ${XDG_CACHE_HOME:-~/.cache}/tessera/index. Nothing else is ever written.
  std::string index_dir = {};
  /// tfrecord: the feature that holds the image. wds: the ending of the image's member. "": found out.
  std::string image_key = {};
  /// tfrecord: the feature that holds the label. wds: a member's ending ("cls"), or a field of a JSON member
  /// ("json:label", "json:a.b"). "": found out.
  std::string label_key = {};
  int64_t label_offset = 0;  // tfrecord, wds, zip: added to every number; -1 where the data count from 1
  std::string classes = {};  // file of class names, one a line; "": classes.txt beside the data, else numbers
  std::function<void(const std::string&)> warn = {};  // one line each; called by open_source only
  bool index_required = false;                        // an index that cannot be written is an error, at once
  std::string key = {};                               // of a recipe that names the source; errors tell it
  const FileSystem* files = &local_files();           // where all of the data are read; outlives the source
};

/// Opens `spec` = "<kind>:<path>" and the split ("train", "val", "test"); docs/data.md has the layouts.
/// folder:DIR    DIR/<split>/<class>/<image>.{jpg,jpeg,png}; "val" also accepts "validation", else "test".
/// zip:DIR       zipped ImageNet: DIR/<split>.zip with DIR/<split>_map.txt ("name<TAB>label" lines).
/// wds:SHARDS    WebDataset: tar or tar.gz files (a folder, names with {000..146} and *, lists).
/// tfrecord:PATH a TFDS folder, or files of Example records like the shards of wds.
/// idx:DIR       MNIST family: train-*-idx3-ubyte[.gz] and t10k-*; val and test are the t10k files.
/// cifar:PATH    CIFAR-10 or CIFAR-100, binary version: its folder or the .tar.gz.
/// fake:N        N synthetic images (default 1280), whose class can be learned; `fake_*` give their form.
/// A spec without a kind is taken as folder: when it holds class folders, as idx: when it holds idx files.
/// A sample that is known to be broken (no label, cut off, listed but not there) is in the list: its load()
/// says what is wrong, its label() is -1. Errors: UserError on a missing or empty folder, an unknown kind
/// (names the nearest), a truncated file.
std::unique_ptr<Source> open_source(const std::string& spec, const std::string& split,
                                    const SourceOptions& options);

}  // namespace tessera::data
