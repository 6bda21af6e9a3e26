// SPDX-License-Identifier: Apache-2.0
// What the writers of numbered shards share: the split they are in, and the shard that is being written.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>

#include "tessera/prepare/partial_file.h"
#include "tessera/prepare/writer.h"

namespace tessera::prepare {

class ShardedWriter : public Writer {
 public:
  void open(const Split& split) override {
    split_ = split.name;
    shard_ = shard_count(split);
  }

 protected:
  ShardedWriter(std::filesystem::path folder, WriterOptions options)
      : folder_(std::move(folder)), options_(std::move(options)) {}

  /// The shard being written has its name from here on; the next one is numbered.
  void publish_shard() {
    file_->publish();
    file_.reset();
    ++shard_;
  }
  /// The sample's bytes are in the block; what else is known of it goes along.
  static Block without_file(Block block, Sample sample) {
    sample.file = {};
    block.sample = std::move(sample);
    return block;
  }

  const std::filesystem::path folder_;
  const WriterOptions options_;
  std::string split_;
  size_t shard_ = 0;
  std::optional<PartialFile> file_;  // none: nothing was appended since the last shard
};

}  // namespace tessera::prepare
