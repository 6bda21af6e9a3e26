// SPDX-License-Identifier: Apache-2.0
// Index files: where a source's samples lie, found once and kept, so that the next start is quick.
// Safe from any thread and from several processes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "tessera/data/source.h"

namespace tessera::data {

/// What make_index did.
struct IndexReport {
  std::filesystem::path file;  // empty: this kind of source needs no index (idx, cifar, fake)
  bool made = false;           // false: the file was there and fits the data
  int64_t samples = 0, classes = 0;
  uint64_t bytes = 0;  // of the file
  double seconds = 0;
};

/// Makes the index file of a source in folder `dir`, or finds that the one there still fits the data. `spec`,
/// `split` and `options` are those of open_source, which finds the file with `options.index_dir` = `dir`.
/// `dir`: a folder (made if need be), "beside" for the data's own, "" for the user's cache folder.
/// Errors: those of open_source; UserError when the folder cannot be written.
IndexReport make_index(const std::string& spec, const std::string& split, const std::string& dir,
                       const SourceOptions& options);

}  // namespace tessera::data
