// SPDX-License-Identifier: Apache-2.0
// Sums over ranks. Private to this room.
//
// On a CPU not by LibTorch's operations: a transport moves on wherever this thread waits, also in a second
// run of a part whose in-place changes are undone afterwards (shard/replay.h), and those of a sum must not
// be.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

namespace tessera::mesh {

/// output[i] = rows[0][i] + rows[1][i] + ..., for `count` numbers: in that order, each first converted to the
/// output's dtype. Floating dtypes. Splits over the intra-op threads.
void sum_rows(void* output, at::ScalarType dtype, std::span<const void* const> rows,
              at::ScalarType rows_dtype, int64_t count);
/// output [n] <- sum of the rows of received [ranks, n], rank 0's first. Any device.
void sum_rows(const at::Tensor& output, const at::Tensor& received);

}  // namespace tessera::mesh
