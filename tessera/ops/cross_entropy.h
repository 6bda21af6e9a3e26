// SPDX-License-Identifier: Apache-2.0
// Cross entropy of logits against labels, two labels a row where they are mixed. Differentiable once. Any
// device and float dtype.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::ops {

/// A row's target is `share` of its label and the rest of the second. All on the logits' device.
struct Labels {
  at::Tensor first;   // [rows] int64
  at::Tensor second;  // [rows] int64, or undefined: the first alone
  at::Tensor share;   // [rows] float32, with `second`
};

/// The sum over rows of the cross entropy of softmax(`logits` [rows, classes]) against (1 - smoothing) *
/// target + smoothing / classes. A scalar.
at::Tensor cross_entropy_sum(const at::Tensor& logits, const Labels& labels, double smoothing);

}  // namespace tessera::ops
