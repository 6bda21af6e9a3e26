// SPDX-License-Identifier: Apache-2.0
#include "tessera/eager/loss.h"

#include <ATen/ATen.h>

#include "tessera/device/host_values.h"
#include "tessera/ops/cross_entropy.h"

namespace tessera::eager {
namespace {

/// Numbers of the batch, where the logits are.
template <typename Number>
at::Tensor there(const std::vector<Number>& values, const at::Tensor& logits) {
  return device::host_values(logits.device(), [&values] { return at::tensor(values); });
}

}  // namespace

at::Tensor cross_entropy_sum(const at::Tensor& logits, const data::Batch& batch, double smoothing) {
  ops::Labels labels{there(batch.labels, logits), {}, {}};
  if (!batch.label_weights.empty()) {
    labels.second = there(batch.second_labels, logits);
    labels.share = there(batch.label_weights, logits);
  }
  return ops::cross_entropy_sum(logits, labels, smoothing);
}

namespace {

/// [size, classes], in the dtype of the logits.
at::Tensor dense_targets(const at::Tensor& logits, const data::Batch& batch, double smoothing) {
  at::Tensor target = at::full_like(logits, smoothing / static_cast<double>(logits.size(1))).detach();
  const auto add = [&](const std::vector<int64_t>& labels, const at::Tensor& share) {
    const at::Tensor index = there(labels, logits).unsqueeze(1);
    target.scatter_add_(1, index, (share * (1 - smoothing)).to(target.scalar_type()).unsqueeze(1));
  };
  if (batch.label_weights.empty()) {
    add(batch.labels, at::ones({logits.size(0)}, logits.device()));
  } else {
    const at::Tensor share = there(batch.label_weights, logits);
    add(batch.labels, share);
    add(batch.second_labels, 1 - share);
  }
  return target;
}

}  // namespace

at::Tensor binary_cross_entropy_sum(const at::Tensor& logits, const data::Batch& batch, double smoothing,
                                    double threshold) {
  at::Tensor target = dense_targets(logits, batch, smoothing);
  if (threshold >= 0) target = target.gt(threshold).to(logits.scalar_type());
  return at::binary_cross_entropy_with_logits(logits, target, {}, {}, at::Reduction::Sum);
}

at::Tensor distillation_sum(const at::Tensor& logits, const at::Tensor& teacher,
                            const recipe::DistillRecipe& options) {
  if (options.kind == "hard") {
    return at::cross_entropy_loss(logits, teacher.argmax(1), {}, at::Reduction::Sum);
  }
  const double t = options.temperature;
  const at::Tensor student = at::log_softmax(logits / t, 1), wanted = at::log_softmax(teacher / t, 1);
  return at::kl_div(student, wanted, at::Reduction::Sum, /*log_target=*/true) * (t * t);
}

namespace {

at::Tensor target_loss(const at::Tensor& logits, const data::Batch& batch, const recipe::Recipe& recipe) {
  const double smoothing = recipe.train.label_smoothing;
  if (recipe.loss.name == "ce") return cross_entropy_sum(logits, batch, smoothing);
  const at::Tensor loss = binary_cross_entropy_sum(logits, batch, smoothing, recipe.loss.threshold);
  return recipe.loss.name == "bce" ? loss / static_cast<double>(logits.size(1)) : loss;
}

bool has_two_heads(const arch::ModelConfig& model) {
  const auto* vit = std::get_if<arch::VitConfig>(&model.of);
  return vit != nullptr && vit->distillation_token;
}

}  // namespace

at::Tensor loss_sum(const at::Tensor& logits, const data::Batch& batch, const recipe::Recipe& recipe,
                    const at::Tensor& teacher) {
  at::Tensor classes = logits, teacher_logits = logits;
  if (has_two_heads(recipe.model)) {
    const auto halves = logits.chunk(2, 1);
    const bool apart = teacher.defined();
    classes = apart ? halves[0] : (halves[0] + halves[1]) / 2;
    teacher_logits = halves[1];
  }
  const at::Tensor loss = target_loss(classes, batch, recipe);
  if (!teacher.defined()) return loss;
  const double alpha = recipe.distill.alpha;
  return loss * (1 - alpha) + distillation_sum(teacher_logits, teacher, recipe.distill) * alpha;
}

}  // namespace tessera::eager
