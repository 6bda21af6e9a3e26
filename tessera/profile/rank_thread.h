// SPDX-License-Identifier: Apache-2.0
// A thread that measures as if it were a rank.
#pragma once

#include <ATen/Parallel.h>

#include <cstdint>

#include "tessera/shard/tensor_memory.h"

namespace tessera::profile {

/// Makes the calling thread compute with `threads` threads, also afterwards. While it lives, large tensors of
/// the thread share no memory with those of other ranks (shard::OwnTensorMemory). At most one per thread.
class RankThread {
 public:
  explicit RankThread(int64_t threads) {
    at::set_num_threads(static_cast<int>(threads));
    shard::keep_tensor_memory();  // as a training does
  }

 private:
  shard::OwnTensorMemory memory_;
};

}  // namespace tessera::profile
