// SPDX-License-Identifier: Apache-2.0
// GELU's output for a linear layer that makes it again in backward. Any device and float dtype.
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/ops/gelu.h"

namespace tessera::ops {

/// What a GELU made, and of what. (Its own backward keeps x in any case.)
struct GeluOutput {
  at::Tensor x;
  at::Tensor rows;  // exact_gelu(x)
};

/// The exact GELU of x.
inline GeluOutput gelu_output(const at::Tensor& x) { return {x, exact_gelu(x)}; }

}  // namespace tessera::ops
