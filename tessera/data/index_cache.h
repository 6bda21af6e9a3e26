// SPDX-License-Identifier: Apache-2.0
// Where index files lie, when they still fit their data, and who makes them: one process of a host, to a
// temporary name that is renamed when it is whole. Safe from any thread and from several processes.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "tessera/data/index_builder.h"
#include "tessera/data/sample_index.h"
#include "tessera/data/source.h"

namespace tessera::data {

/// An index that is wanted.
struct IndexRequest {
  std::string kind;            // "folder", "wds"
  std::filesystem::path data;  // absolute; the folder or file that the source was given
  std::string split;
  std::string settings;  // all else on which the content depends, as text
  /// Files and folders on whose size and time of change the content depends; inside of `data` or beside it.
  std::vector<std::filesystem::path> inputs;
  std::function<void(IndexBuilder&)> build;
};

struct OpenedIndex {
  SampleIndex index;
  std::filesystem::path file;  // empty: in memory only
  bool made = false;           // by this call
  std::string not_written;     // why there is no file; "" where there is one or none is wanted
};

/// The index from its file where that fits the data, else made anew and written. What cannot be written is
/// used from memory. Notes of the index go to options.warn. Errors: those of `build`; UserError when an input
/// is missing.
OpenedIndex open_index(const IndexRequest& request, const SourceOptions& options);

/// The folder of `options.index_dir` for data at this place; empty: none is to be used.
std::filesystem::path index_folder(const IndexRequest& request, const SourceOptions& options);
/// `text` with every "{split}" replaced.
std::string with_split(std::string text, const std::string& split);

}  // namespace tessera::data
