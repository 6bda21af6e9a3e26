// SPDX-License-Identifier: Apache-2.0
// The loss of a training batch.
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/data/batch.h"
#include "tessera/recipe/recipe.h"

namespace tessera::eager {

/// The sum over the samples of the cross entropy against (1 - smoothing) * target + smoothing / classes,
/// where a target is the label, or label_weights[i] of it and the rest of the second label (Mixup, CutMix).
/// As torch's cross_entropy with label_smoothing, and timm's SoftTargetCrossEntropy over its mixup targets.
/// `logits`: [size, classes] float. A scalar that can be differentiated.
at::Tensor cross_entropy_sum(const at::Tensor& logits, const data::Batch& batch, double smoothing);

/// The sum over samples and classes of the binary cross entropy of sigmoid(logit) against the same targets;
/// with `threshold` >= 0 against 1 where a target is above it and 0 elsewhere. As big_vision's sigmoid_xent;
/// divided by the classes, as timm's BinaryCrossEntropy (target_threshold), which trains DeiT III.
at::Tensor binary_cross_entropy_sum(const at::Tensor& logits, const data::Batch& batch, double smoothing,
                                    double threshold);

/// How far the student is from the teacher, summed over the samples. Soft, with temperature T: T^2 times the
/// Kullback-Leibler divergence sum_c q_c (log q_c - log p_c) of q = softmax(teacher / T) and p =
/// softmax(logits / T) (Hinton et al., arXiv 1503.02531; DeiT's code divides it by the classes as well).
/// Hard: the cross entropy against the teacher's first choice (DeiT, arXiv 2012.12877). Both [size, classes].
at::Tensor distillation_sum(const at::Tensor& logits, const at::Tensor& teacher,
                            const recipe::DistillRecipe& options);

/// The recipe's loss, summed over the samples: (1 - alpha) times that of the targets, alpha times that of the
/// teacher. `teacher`: its logits; undefined: the targets alone count. With a distillation token `logits` are
/// those of both heads, [size, 2 * classes]: the first learns the targets, the second the teacher; without a
/// teacher their mean learns the targets, as in timm.
at::Tensor loss_sum(const at::Tensor& logits, const data::Batch& batch, const recipe::Recipe& recipe,
                    const at::Tensor& teacher = {});

}  // namespace tessera::eager
