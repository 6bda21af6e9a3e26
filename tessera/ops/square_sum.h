// Sums of squares, for norms of gradients.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::ops {

/// Of a contiguous float32 tensor on the CPU. Splits over the intra-op threads; the same bits on any number
/// of them.
double square_sum(const at::Tensor& t);

}  // namespace tessera::ops
