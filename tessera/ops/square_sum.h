// SPDX-License-Identifier: Apache-2.0
// Sums of squares, for norms of gradients.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace tessera::ops {

/// Of a floating tensor of any shape and device: a float64 scalar on that device, for which nothing is
/// waited. What is narrower than float32 is added up in float32. On the CPU in float32 and bf16 it splits
/// over the intra-op threads, with the same bits on any number of them. Not differentiable.
at::Tensor square_sum(const at::Tensor& t);

/// The sum over all of them, which are on one device, at least one, and floating: as above, but for the order
/// in which squares are added. A few launches on a GPU, for any number of tensors.
at::Tensor square_sum(const std::vector<at::Tensor>& tensors);

/// Of a float64 scalar on any device, there, without waiting. Correctly rounded, as std::sqrt: LibTorch's own
/// on CPUs may be a unit in the last place off. Not differentiable.
at::Tensor square_root(const at::Tensor& scalar);

}  // namespace tessera::ops
