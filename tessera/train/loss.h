// The loss of a training batch.
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/data/batch.h"
#include "tessera/recipe/recipe.h"

namespace tessera::train {

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

/// The recipe's loss, summed over the samples.
at::Tensor loss_sum(const at::Tensor& logits, const data::Batch& batch, const recipe::Recipe& recipe);

}  // namespace tessera::train
