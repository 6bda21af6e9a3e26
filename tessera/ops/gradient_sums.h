// SPDX-License-Identifier: Apache-2.0
// The gradient of a weight that several calls of a layer share, each with some of the samples.
//
// Note [Rounded once]: autograd adds the gradients of such calls in the weight's dtype: in bf16 every one is
// rounded, and every sum. One call with all samples adds in float32 and rounds once. So calls that share a
// GradientSum go on with each other's float32 sums, as one call's kernel does with those of the rows before,
// and the last one that is differentiated returns the gradient.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <unordered_map>

namespace tessera::ops {

/// Of one weight.
struct GradientSum : torch::CustomClassHolder {
  int64_t calls = 0, differentiated = 0;
  at::Tensor waiting;  // float32: sums of the weight's gradient, as the kernels lay them out
  at::Tensor result;   // of the weight's shape and dtype; the last call sets it
  at::Tensor bias;     // [out] float32: sums of the bias's gradient
};
using SharedGradientSum = c10::intrusive_ptr<GradientSum>;

/// While it lives, calls of bf16 linear layers with kernels for CPUs on this thread share their weights'
/// sums. Requires: every call is differentiated, or none.
class GradientSums {
 public:
  GradientSums();
  ~GradientSums();
  GradientSums(const GradientSums&) = delete;
  GradientSums& operator=(const GradientSums&) = delete;

 private:
  friend SharedGradientSum gradient_sum_of(const at::Tensor& weight);
  std::unordered_map<const void*, SharedGradientSum> sums_;  // by the weight's memory
  GradientSums* before_;
};

/// For one more call of a layer; null: its gradient is its own.
SharedGradientSum gradient_sum_of(const at::Tensor& weight);

}  // namespace tessera::ops
