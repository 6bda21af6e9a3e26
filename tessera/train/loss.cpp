#include "tessera/train/loss.h"

#include <ATen/ATen.h>

namespace tessera::train {

at::Tensor cross_entropy_sum(const at::Tensor& logits, const data::Batch& batch, double smoothing) {
  const at::Tensor labels = at::tensor(batch.labels);
  if (batch.label_weights.empty()) {
    return at::cross_entropy_loss(logits, labels, {}, at::Reduction::Sum, -100, smoothing);
  }
  // The loss is linear in the target: two labels need no dense one.
  const at::Tensor logs = at::log_softmax(logits, 1);
  const auto of = [&](const at::Tensor& label) { return logs.gather(1, label.unsqueeze(1)).squeeze(1); };
  const at::Tensor share = at::tensor(batch.label_weights);
  const at::Tensor mixed = of(labels) * share + of(at::tensor(batch.second_labels)) * (1 - share);
  const at::Tensor loss = mixed.sum() * (smoothing - 1);
  return smoothing > 0 ? loss - logs.sum() * (smoothing / static_cast<double>(logits.size(1))) : loss;
}

}  // namespace tessera::train
