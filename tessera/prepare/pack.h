// SPDX-License-Identifier: Apache-2.0
// Any source into any form.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/data/source.h"
#include "tessera/prepare/writer.h"

namespace tessera::prepare {

struct PackOptions {
  Form form = Form::kWds;
  std::vector<std::string> splits = {"train", "val"};
  /// Of a shard (wds, tfrecord), as much as fits; 0: 1 GiB for wds, 256 MiB for tfrecord, of blocks without
  /// what ends an archive. A sample larger than this is a shard of its own. Of zip and folder: how much is
  /// made durable at once; 0: 1 GiB.
  uint64_t max_bytes = 0;
  int64_t max_samples = 0;          // the same in samples; 0: no limit, 4096 for folder
  std::optional<uint64_t> shuffle;  // seed of the order; none: the source's order
  int workers = 0;                  // threads that read and encode; 0: one a core
  bool skip_broken = false;         // leave out what cannot be read, instead of ending
  WriterOptions writer;
};

struct PackProgress {
  std::string split;
  int64_t position = 0, samples = 0;  // of the split
  uint64_t bytes = 0;                 // written by this run
};

struct PackResult {
  std::vector<Split> splits;
  bool was_done = false;     // an earlier run of the same command had done all
  int64_t resumed_from = 0;  // samples that an earlier run had written
};

/// A split of what is packed; `origin` names the whole in the journal.
using OpenSplit = std::function<std::unique_ptr<data::Source>(const std::string& split)>;

/// Writes the encoded files of the samples as they are; plain pixels become PNG. The result is a function of
/// the samples, their names and the options but `workers`: the same bytes on any machine. A run that ended
/// early goes on where it was, whatever ended it; `folder`/pack.jsonl says where that is.
/// `progress` is called on the caller's thread, after each sample.
/// Errors: UserError on a name for shards that is no plain file name, a folder that holds something else or
/// not what an earlier run says it wrote, a sample that cannot be read or is neither JPEG
/// nor PNG (unless `skip_broken`), splits that differ in their classes, a full disk.
PackResult pack(const OpenSplit& open, const std::string& origin, const std::filesystem::path& folder,
                const PackOptions& options, const std::function<void(const PackProgress&)>& progress = {});

}  // namespace tessera::prepare
