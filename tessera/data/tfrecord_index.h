// SPDX-License-Identifier: Apache-2.0
// Finds the samples of a file of Example records. Each call belongs to one thread; several files at once are
// fine.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/base/byte_source.h"
#include "tessera/data/class_names.h"
#include "tessera/data/indexed_shards.h"
#include "tessera/formats/example.h"

namespace tessera::data {

/// The features to look at. "": the first of image/encoded, image; of image/class/label, label.
struct ExampleKeys {
  std::string image, label;
};

/// The image of an Example; null with the reason in `problem`.
const formats::Feature* find_image(const std::vector<formats::Feature>& features, const ExampleKeys& keys,
                                   std::string& problem);

/// A file of Example records.
struct RecordFile {
  std::filesystem::path path;
  uint32_t number = 0;  // in the index
  const FileSystem* files = &local_files();
};

/// Appends the records of a file, plain or packed by gzip. Of a plain file only the parts before and after
/// the images are read, and a record's CRC is checked when it is loaded; of a packed one everything is. A
/// wrong CRC of a length loses the rest of the file: one broken sample.
void index_tfrecord_file(const RecordFile& record_file, const ExampleKeys& keys, const LabelReader& labels,
                         IndexBuilder& builder);

}  // namespace tessera::data
