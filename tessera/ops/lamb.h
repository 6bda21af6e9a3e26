// SPDX-License-Identifier: Apache-2.0
// LAMB before the length of its step is known: that takes norms of whole tensors, which one rank may not
// have. Local.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera::ops {

struct LambOptions {
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-6, weight_decay = 0.0;
  int64_t step = 1;         // 1-based, for the bias correction
  double grad_scale = 1.0;  // multiplies the gradient first (clipping)
};

/// Tensors of one shape and floating dtype. Updates both moments and fills `direction`, which may be
/// `gradient` itself (You et al., arXiv 1904.00962, algorithm 2):
///   m = b1 m + (1 - b1) g    v = b2 v + (1 - b2) g^2
///   direction = (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + epsilon) + weight_decay * parameter
void lamb_direction(at::Tensor direction, const at::Tensor& parameter, const at::Tensor& gradient,
                    at::Tensor exp_avg, at::Tensor exp_avg_sq, const LambOptions& options);

/// What the step along a direction is multiplied by, from norms of the whole tensor: parameter / direction,
/// 1 where one of them is 0.
double trust_ratio(double parameter_norm, double direction_norm);

}  // namespace tessera::ops
