// SPDX-License-Identifier: Apache-2.0
// Where a backward pass puts the gradients of parameters: who gathers them somewhere need not copy those that
// were made there.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

namespace tessera::ops {

/// Memory for one gradient of a parameter: contiguous, of its shape and dtype, a view that nobody else holds
/// (else autograd copies what is made there); undefined: any.
using GradientPlace = std::function<at::Tensor(const at::Tensor& parameter)>;

/// While it lives, what this thread differentiates asks `place` (linear layers on a CPU do).
class GradientMemory {
 public:
  explicit GradientMemory(GradientPlace place);
  ~GradientMemory();
  GradientMemory(const GradientMemory&) = delete;
  GradientMemory& operator=(const GradientMemory&) = delete;

 private:
  GradientPlace before_;
};

/// For the gradient of `parameter`, values not set.
at::Tensor empty_gradient(const at::Tensor& parameter);

}  // namespace tessera::ops
