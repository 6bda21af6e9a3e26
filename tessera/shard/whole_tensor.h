// SPDX-License-Identifier: Apache-2.0
// Whole tensors from the shards of all ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/shard/unit.h"

namespace tessera::shard {

/// Copies a shard's elements to their places in the whole tensor. `values`: 1-D, as many elements as the
/// shard, such as its master values or its gradient. `whole`: contiguous, of the shape shard.shape, any
/// dtype. Local.
void copy_to_whole(const Shard& shard, const at::Tensor& values, const at::Tensor& whole);

}  // namespace tessera::shard
