// The loss of a training batch.
#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/data/batch.h"

namespace tessera::train {

/// The sum over the samples of the cross entropy against (1 - smoothing) * target + smoothing / classes,
/// where a target is the label, or label_weights[i] of it and the rest of the second label (Mixup, CutMix).
/// As torch's cross_entropy with label_smoothing, and timm's SoftTargetCrossEntropy over its mixup targets.
/// `logits`: [size, classes] float. A scalar that can be differentiated.
at::Tensor cross_entropy_sum(const at::Tensor& logits, const data::Batch& batch, double smoothing);

}  // namespace tessera::train
