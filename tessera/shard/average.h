// SPDX-License-Identifier: Apache-2.0
// Tensors that every rank has a version of, made alike.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "tessera/mesh/group.h"

namespace tessera::shard {

/// Floating tensors become the mean over the ranks (summed in float64, so that equal ones stay as they are),
/// others what rank 0 has. Shapes are the same on all ranks. Collective, one all-reduce.
void average_over_ranks(const std::vector<at::Tensor>& tensors, mesh::Group& group);

}  // namespace tessera::shard
