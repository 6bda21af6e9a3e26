// SPDX-License-Identifier: Apache-2.0
// Memory of large CPU tensors, kept for the next ones.
//
// A training step asks for the same sizes again and again. malloc gives large ones back to the system each
// time (and the next tensor pays for every page anew) or cuts them from a heap that is left with holes. Here
// a large tensor has pages of its own; when it dies they wait for another: a smaller one takes a part, and
// parts side by side are one again. They never wait in vain: what is used and what waits together stay below
// the most that was ever used at once and a 64th more (threads with a pool: OwnTensorMemory). So the process
// holds what the tensors needed at their peak, and a step in its steady state asks the system for next to
// nothing.
//
// Safe from any thread.
#pragma once

#include <cstdint>

namespace tessera::shard {

/// From now on every CPU tensor of at least 32 KiB lives in such memory. A second call changes nothing.
/// There is no way back: tensors may outlive any moment one could choose.
void keep_tensor_memory();

/// While it lives, large tensors that the calling thread makes have a pool of memory that no other thread's
/// tensors use. For ranks that are threads of one process: blocks that another rank has written last are in
/// the cache of the other rank's core, and passes of small batches took up to a quarter longer. The pool
/// holds up to twice the peak of its tensors, and at most a GiB more than that peak. Tensors that outlive it
/// keep their memory. Without effect before keep_tensor_memory(). Requires: destroyed by the thread that made
/// it; at most one per thread.
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
  int64_t peak = 0;     // the most ever used
};
/// All zero before keep_tensor_memory().
TensorMemory tensor_memory();

}  // namespace tessera::shard
