// SPDX-License-Identifier: Apache-2.0
// Finds the samples of a WebDataset shard. Each call belongs to one thread; several shards at once are fine.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tessera/base/byte_source.h"
#include "tessera/data/class_names.h"
#include "tessera/data/indexed_shards.h"
#include "tessera/data/left_out.h"

namespace tessera::data {

/// What is looked for in a sample.
struct WdsKeys {
  std::string image;  // ending of the image's member; "": jpg, jpeg or png
  std::string label;  // ending of the label's member; "": cls, else json
  std::string
      json_field;  // of the label in a JSON member, "a.b" for nested ones; "": the member is the label
};

/// From data.image_key and data.label_key ("", "cls", "json:label"); see SourceOptions.
WdsKeys wds_keys(const SourceOptions& options);

/// A shard: a tar file, or one packed by gzip.
struct WdsShard {
  std::filesystem::path path;
  uint32_t number = 0;
  std::optional<std::filesystem::path> dali_index;
  const FileSystem* files = &local_files();
};

/// Appends the shard's samples. What is wrong with one makes a broken sample of it; an archive that ends
/// early or cannot be read gives one broken sample for what is lost. `left_out` counts what is lost to the
/// naming rule: members that belong to no sample, and images and labels beside those of their sample. Other
/// members of a sample (captions, masks) are not counted, nor images that `keys` do not ask for.
void index_wds_shard(const WdsShard& shard, const WdsKeys& keys, const LabelReader& labels,
                     IndexBuilder& builder, LeftOut& left_out);

}  // namespace tessera::data
