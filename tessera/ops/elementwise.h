// SPDX-License-Identifier: Apache-2.0
// Updates of flat shards in one pass: SGD, Lion, the moving average of weights. Local; split over the
// intra-op threads. Every element depends on itself alone, so the result is the same for any split.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::ops {

struct SgdOptions {
  double lr = 0.1, momentum = 0.9, weight_decay = 0.0;
  bool nesterov = false;
  double grad_scale = 1.0;  // multiplies the gradient first (clipping)
};

/// All tensors: 1-D, contiguous, float32 or (with LibTorch's operations) float64, the same length; `velocity`
/// undefined where momentum is 0. As
/// torch.optim.SGD without dampening: g += wd * p; v = momentum * v + g; p -= lr * (nesterov ? g + momentum *
/// v : v).
void sgd(at::Tensor parameter, const at::Tensor& gradient, at::Tensor velocity, const SgdOptions& options);

struct LionOptions {
  double lr = 1e-4, beta1 = 0.9, beta2 = 0.99, weight_decay = 0.0;
  double grad_scale = 1.0;
};

/// As sgd's tensors. Chen et al., arXiv 2302.06675, algorithm 2: p *= 1 - lr * wd; p -= lr * sign(b1 * m + (1
/// - b1) * g); m = b2 * m + (1 - b2) * g. The sign of 0 is 0.
void lion(at::Tensor parameter, const at::Tensor& gradient, at::Tensor exp_avg, const LionOptions& options);

/// average += (1 - decay) * (values - average). As sgd's tensors.
void move_average(at::Tensor average, const at::Tensor& values, double decay);

}  // namespace tessera::ops
