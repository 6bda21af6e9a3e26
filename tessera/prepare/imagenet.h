// SPDX-License-Identifier: Apache-2.0
// The original archives of ILSVRC2012 as sources: read in place, never unpacked.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tessera/data/source.h"

namespace tessera::prepare {

struct ImagenetArchives {
  std::filesystem::path train;   // ILSVRC2012_img_train.tar: a tar of a tar for each class
  std::filesystem::path val;     // ILSVRC2012_img_val.tar
  std::filesystem::path devkit;  // ILSVRC2012_devkit_t12.tar.gz; train alone can do without
};

/// What the development kit says.
struct ImagenetDevkit {
  std::map<int64_t, std::string> wnid_of_id;  // ILSVRC2012_ID of the classes that have images
  std::vector<int64_t> val_ids;               // of validation image 1, 2, ...
  /// Sorted: the order of labels everywhere but in the kit itself.
  std::vector<std::string> wnids() const;
};

/// Reads data/meta.mat and data/ILSVRC2012_validation_ground_truth.txt of the kit (tar or tar.gz).
/// Errors: UserError that names the kit and what is missing in it.
ImagenetDevkit read_imagenet_devkit(const std::filesystem::path& path);

/// Split "train" or "val". Labels are places in the sorted list of wnids. Reads the headers of all members;
/// images when they are loaded. Errors: UserError on an archive that is missing, cut off, or another one, and
/// on classes or validation images that the kit does not know.
std::unique_ptr<data::Source> open_imagenet(const ImagenetArchives& archives, const std::string& split);

}  // namespace tessera::prepare
