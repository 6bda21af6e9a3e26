// Sums over ranks. Private to this room.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace tessera::mesh {

/// output [n] <- sum of `rows` ([n] each, of one dtype, at least one), first row first: each number is added
/// in the output's dtype.
void sum_rows(const at::Tensor& output, const std::vector<at::Tensor>& rows);

}  // namespace tessera::mesh
