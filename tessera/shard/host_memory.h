// SPDX-License-Identifier: Apache-2.0
// The host's memory for state that is offloaded there (plan::Offload): page-locked where a GPU answers, so
// that copies to and from it run beside the computation. Apart from the memory in which units compute, also
// where that is the host's own. Safe from any thread.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera::shard {

/// [numel] zeros. May outlive anything.
at::Tensor host_tensor(int64_t numel, at::ScalarType dtype);

/// Bytes of all such tensors alive.
int64_t host_memory_used();

}  // namespace tessera::shard
