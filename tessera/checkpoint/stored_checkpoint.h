// SPDX-License-Identifier: Apache-2.0
// A checkpoint on disk as a source of tensors.
#pragma once

#include <list>
#include <memory>
#include <set>

#include "tessera/checkpoint/manifest.h"
#include "tessera/checkpoint/shard_file.h"
#include "tessera/checkpoint/tensor_source.h"

namespace tessera::checkpoint {

/// Reads each shard file once to check it, when it is first needed. Keeps few of them open, so that any
/// number of ranks can be read. Errors: as load.
class StoredCheckpoint final : public TensorSource {
 public:
  explicit StoredCheckpoint(Folders folders);

  const std::vector<Manifest::Tensor>& tensors() const override { return stored_.manifest.tensors; }
  void read(size_t tensor, int64_t begin, std::span<std::byte> out) override;
  const Progress& progress() const override { return stored_.manifest.progress; }

  const StoredManifest& stored() const { return stored_; }
  const Folders& folders() const { return folders_; }

 private:
  struct Open {
    int64_t shard = 0;
    std::unique_ptr<ShardFile> file;
  };
  const ShardFile& file(int64_t shard);

  Folders folders_;
  StoredManifest stored_;
  ShardFolders places_;
  std::list<Open> open_;  // the one used last is first
  std::set<int64_t> verified_;
};

}  // namespace tessera::checkpoint
