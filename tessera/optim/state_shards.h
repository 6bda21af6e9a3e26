// SPDX-License-Identifier: Apache-2.0
// Shards of a checkpoint over tensors on any device. A checkpoint reads and writes the host's memory: a
// tensor that lies elsewhere has a staging buffer there, page-locked, which holds its values between fetch()
// and store(). Tensors of the host are their own: nothing is copied.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "tessera/checkpoint/checkpoint.h"

namespace tessera::optim {

class StateShards {
 public:
  /// `shard` without its data, which is `memory`: contiguous, of the shard's dtype and size. Shares it.
  void add(checkpoint::TensorShard shard, const at::Tensor& memory);
  /// Valid while this lives. May lose shards.
  std::vector<checkpoint::TensorShard>& list() { return list_; }
  const std::vector<checkpoint::TensorShard>& list() const { return list_; }

  /// Before a save: the staging buffers take their tensors' values. Returns when they are there.
  void fetch() const;
  /// After loading: the tensors take their staging buffers' values; those that nothing was loaded into must
  /// have been fetched.
  void store() const;

 private:
  struct StagingBuffer {
    at::Tensor tensor, host;
  };
  std::vector<checkpoint::TensorShard> list_;
  std::vector<StagingBuffer> staging_;
};

}  // namespace tessera::optim
