// SPDX-License-Identifier: Apache-2.0
// Shards of a checkpoint over tensors on any device. A checkpoint reads and writes the host's memory: a
// tensor that lies elsewhere has a staging buffer there, page-locked, which holds its values between fetch()
// and store(). Tensors of the host are their own: nothing is copied.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/checkpoint/checkpoint.h"

namespace tessera::optim {

/// The dtype that safetensors files call `name` ("F32"); nothing where LibTorch does not support it.
std::optional<at::ScalarType> dtype_named(std::string_view name);

class StateShards {
 public:
  /// Adds `region` of a tensor of this shape. `memory` holds its values, contiguous, in the dtype in which
  /// they are saved; shares it. `replica`: a lower rank adds the same. Errors: UserError on a dtype that
  /// safetensors does not support.
  void add(std::string name, std::vector<int64_t> shape, Region region, bool replica,
           const at::Tensor& memory);
  void add_whole(std::string name, bool replica, const at::Tensor& tensor);
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
