// SPDX-License-Identifier: Apache-2.0
// Memory of large CPU tensors, kept for the next ones.
//
// A training step asks for the same sizes again and again. malloc gives large ones back to the system each
// time (and the next tensor pays for every page anew) or cuts them from a heap that is left with holes. Here
// a large tensor has pages of its own; when it dies they wait for another: a smaller one takes a part, and
// parts side by side are one again. They never wait in vain: what is used and what waits together stay below
// the most that was ever used at once and a 64th more. So the process holds what the tensors needed at their
// peak, and a step in its steady state asks the system for next to nothing.
//
// Safe from any thread.
#pragma once

#include <cstdint>

namespace tessera::shard {

/// From now on every CPU tensor of at least 32 KiB lives in such memory. A second call changes nothing.
/// There is no way back: tensors may outlive any moment one could choose.
void keep_tensor_memory();

/// While it lives, large tensors that the calling thread makes share no memory with those of other threads,
/// and up to as much as their peak waits for others. For ranks that are threads of one process: what another
/// rank has written is in the cache of that one's core, and passes of small batches took up to a quarter
/// longer, more or less from one run to the next. Tensors that outlive it keep their memory. Requires:
/// destroyed by the thread that made it, which has no other.
class OwnTensorMemory {
 public:
  OwnTensorMemory();
  ~OwnTensorMemory();
  OwnTensorMemory(const OwnTensorMemory&) = delete;
  OwnTensorMemory& operator=(const OwnTensorMemory&) = delete;
};

struct TensorMemory {
  int64_t used = 0;     // bytes of tensors alive now
  int64_t waiting = 0;  // for other tensors
  int64_t peak = 0;     // the most ever used, of each thread with memory of its own
};
/// All zero before keep_tensor_memory().
TensorMemory tensor_memory();

}  // namespace tessera::shard
