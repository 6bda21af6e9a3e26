// SPDX-License-Identifier: Apache-2.0
// What tests of differentiable operations share: inputs, exact copies of them, and how far a result is off.
#pragma once

#include <ATen/ATen.h>

#include <vector>

namespace tessera::ops {

using Tensors = std::vector<at::Tensor>;

constexpr double kEpsilon = 1e-6;                         // of every norm here
constexpr auto kImages = at::MemoryFormat::ChannelsLast;  // of what is convolved

/// The same numbers in float64, for the plain formula and its gradients.
inline Tensors exact_copies(const Tensors& inputs) {
  Tensors exact;
  for (const at::Tensor& input : inputs) exact.push_back(input.detach().to(at::kDouble).requires_grad_());
  return exact;
}

/// The largest difference as a share of the largest value. Of tensors on any devices and of any dtypes.
inline double error(const at::Tensor& found, const at::Tensor& exact) {
  if (exact.numel() == 0) return 0;
  const at::Tensor wide = exact.to(at::kCPU, at::kDouble);
  const at::Tensor apart = found.to(at::kCPU, at::kDouble) - wide;
  return (apart.abs().max() / wide.abs().max().clamp_min(1e-30)).item<double>();
}

}  // namespace tessera::ops
