// SPDX-License-Identifier: Apache-2.0
// AdamW and Adam over flat shards in one pass: moments, decay, update. Local; splits over the intra-op
// threads. Every element depends on itself alone, so the result is the same for any split.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera::ops {

struct AdamwOptions {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8, weight_decay = 0.0;
  int64_t step = 1;         // 1-based, for the bias correction
  double grad_scale = 1.0;  // multiplies the gradient first (clipping)
  bool coupled = false;     // decay is a part of the gradient: Adam
};

/// All tensors: 1-D, contiguous, float32, the same length; the gradient may be bf16, which gives the bits
/// that the same numbers in float32 give. Updates parameter and both moments in place, as torch.optim.AdamW
/// does (Loshchilov and Hutter, arXiv 1711.05101): p *= 1 - lr * wd; m, v; bias correction; p -= lr * m_hat /
/// (sqrt(v_hat) + eps). `coupled`: as torch.optim.Adam (Kingma and Ba, arXiv 1412.6980), g
/// += wd * p instead of the first. `copy`: of the same length, of another float dtype, gets the parameter's
/// new values; undefined: not wanted.
void adamw(at::Tensor parameter, const at::Tensor& gradient, at::Tensor exp_avg, at::Tensor exp_avg_sq,
           const AdamwOptions& options, at::Tensor copy = {});

}  // namespace tessera::ops
