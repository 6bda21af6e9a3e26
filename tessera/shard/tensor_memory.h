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

struct TensorMemory {
  int64_t used = 0;     // bytes of tensors alive now
  int64_t waiting = 0;  // for other tensors
  int64_t peak = 0;     // the most ever used
};
/// All zero before keep_tensor_memory().
TensorMemory tensor_memory();

}  // namespace tessera::shard
