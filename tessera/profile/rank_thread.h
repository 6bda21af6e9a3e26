// SPDX-License-Identifier: Apache-2.0
// A thread that measures as if it were a rank.
#pragma once

#include <ATen/Parallel.h>

#include <cstdint>

#include "tessera/shard/tensor_memory.h"

namespace tessera::profile {

/// While it lives, the calling thread computes with `threads` threads, and its large tensors share no memory
/// with those of other ranks (shard::OwnTensorMemory), as if the rank had a process. Requires: no other of
/// this thread.
class RankThread {
 public:
  explicit RankThread(int64_t threads) { at::set_num_threads(static_cast<int>(threads)); }

 private:
  shard::OwnTensorMemory memory_;
};

}  // namespace tessera::profile
