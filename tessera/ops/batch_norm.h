// SPDX-License-Identifier: Apache-2.0
// Batch normalisation of images, and what follows it in a residual network. Differentiable once. Any device
// and float dtype.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::ops {

/// The tensors of one norm, held as handles, and its settings.
struct BatchNorm {
  at::Tensor weight, bias;               // [channels], any floating dtype
  at::Tensor running_mean, running_var;  // [channels] float32
  double epsilon = 1e-5, momentum = 0.1;
};

/// What follows a norm: y + residual, then ReLU.
struct AfterNorm {
  bool relu = false;
  at::Tensor residual = {};  // as y, or undefined for 0
};

/// after((x - mean) / sqrt(variance + epsilon) * weight + bias), per channel. `x`: [samples, channels,
/// height, width] -> the same. Statistics and arithmetic are float32 or more.
///
/// While training mean and variance are the batch's, and the running ones move towards them by `momentum`
/// (the variance without bias), unless x is empty. Else they are the running ones. Errors: UserError of one
/// value a channel in training, which has no such variance.
///
/// On CPUs with kernels (cpu/cpu.h) images in channels-last memory take own kernels: two passes over them
/// forward and two backward with all that follows, which keep x and a bit for each element. Their numbers do
/// not depend on the number of threads.
at::Tensor batch_norm(const at::Tensor& x, const BatchNorm& norm, bool training, const AfterNorm& after = {});

/// What a norm made, with a ReLU or without, and of what: x - mean times scale, plus shift. That is undefined
/// where LibTorch's kernels made it, whose ReLU keeps the images in any case, and without gradients.
struct BatchNormOutput {
  at::Tensor images = {}, x = {};                // [samples, channels, height, width]
  at::Tensor mean = {}, scale = {}, shift = {};  // [channels] float32
  bool relu = false;
  bool is_known() const { return x.defined(); }
};
/// batch_norm() without a residual.
BatchNormOutput normed_images(const at::Tensor& x, const BatchNorm& norm, bool training, bool relu);
/// images once more, the same bits, of the rest. Requires: that is known.
at::Tensor made_again(const BatchNormOutput& normed);

/// y with what follows, in place.
at::Tensor after_norm(at::Tensor y, const AfterNorm& after);

}  // namespace tessera::ops
